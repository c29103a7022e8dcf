"""Whether a wheel or a tree is what this repository makes of the upstream it names, byte for byte."""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .. import REVISION
from ..errors import Rejected
from ..patches.lockfile import Lock
from ..system.gitrepo import checked_out, git, last_with_trailer, text, trailer
from ..upstream import pristine
from ..workspace.run_files import RUN_FILES

_LOCAL = re.compile(r"simpletuner-(?P<version>[^-+]+)\+gh200\.(?P<revision>\d+)-py3-none-any\.whl")
SHOWN = 20


@dataclass(frozen=True)
class Claim:
    """What a wheel or a tree says it is."""

    path: Path
    upstream: str
    is_wheel: bool


def read_claim(path: Path, asked: str | None) -> Claim:
    """Which upstream to recompute it from, unless one was asked for; rejects what is no wheel and no tree of ours."""
    if path.is_file():
        return _wheel_claim(path)
    if not path.is_dir():
        raise Rejected(f"There is nothing at {path}", fix="name a wheel, or the directory of a fork")
    if asked or not (path / ".git").exists():
        return Claim(path, asked or f"pypi:{pristine.version(path)}", False)
    commit = last_with_trailer(path, "HEAD", "Gh200-Upstream")
    kind, _, name = trailer(path, commit, "Gh200-Upstream").partition(" ") if commit else ("", "", "")
    if kind != "pypi":
        raise Rejected(
            "The upstream of this tree is not known",
            where=str(path),
            why=f"it names {kind or 'no upstream'}{' ' + name if name else ''}, and only a release has a known hash",
            fix="name the same upstream with --upstream",
        )
    return Claim(path, f"pypi:{name}", False)


def _wheel_claim(path: Path) -> Claim:
    found = _LOCAL.fullmatch(path.name)
    if not found:
        raise Rejected(
            "This is not a wheel of the fork",
            where=str(path),
            why="those are called simpletuner-X.Y.Z+gh200.N-py3-none-any.whl",
            fix="name one that `./execute_gh200_rebase.sh wheel` made, under its own name",
        )
    if int(found["revision"]) != REVISION:
        raise Rejected(
            f"The wheel is of revision {found['revision']}, this repository is revision {REVISION}",
            where=str(path),
            fix="check out the commit of this repository that it was made from",
        )
    return Claim(path, f"pypi:{found['version']}", True)


def require_known_archive(lock: Lock, version: str, archive: Path) -> str:
    """The archive's sha256, which must be the one the lock has recorded."""
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    wanted = lock.releases.get(version)
    if wanted != found:
        raise Rejected(
            f"The source archive of {version} is not the one the lock has verified",
            where=str(archive),
            why=f"its sha256 is {found}, the lock has {wanted or 'none'}",
            fix="verify the release with `lock`, or find out who changed the archive",
        )
    return found


def wheel_differences(wheel: Path, expected: Path) -> list[str]:
    """What differs between two wheels, one line for each file."""
    if wheel.read_bytes() == expected.read_bytes():
        return []
    try:
        found, wanted = _members(wheel), _members(expected)
    except (zipfile.BadZipFile, OSError) as error:
        return [f"{wheel.name}: cannot be read: {error}"]
    return list(_compared(found, wanted)) or ["the same files with the same bytes, packed differently"]


def _members(wheel: Path) -> dict[str, str]:
    with zipfile.ZipFile(wheel) as archive:
        return {info.filename: hashlib.sha256(archive.read(info)).hexdigest() for info in archive.infolist()}


def tree_differences(tree: Path, expected: Path) -> list[str]:
    """Of a checkout the commit's id too; files it ignores are nobody's claim."""
    found = [*_compared(_files(tree), _files(expected))]
    if (tree / ".git").exists():
        ours, theirs = (text(place, "rev-parse", "HEAD") for place in (expected, tree))
        if ours != theirs:
            branch = (checked_out(tree) or "HEAD").removeprefix("refs/heads/")
            found.insert(0, f"{branch} is {theirs}, and would be {ours}")
    return found


def _files(root: Path) -> dict[str, str]:
    listed = {file.path: f"{file.mode} {hashlib.sha256(file.data).hexdigest()}" for file in pristine.files(root)}
    if (root / ".git").exists():
        # Files with assume-unchanged or skip-worktree set are read too; what git ignores is not.
        names = {os.fsdecode(name) for name in git(root, "ls-tree", "-r", "-z", "--name-only", "HEAD").split(b"\0")}
        listed |= dict.fromkeys(names - listed.keys() - {""}, "gone")
    return {path: mark for path, mark in listed.items() if path not in RUN_FILES}


def _compared(found: Mapping[str, str], wanted: Mapping[str, str]) -> Iterator[str]:
    for path in sorted(found.keys() | wanted.keys()):
        if found.get(path, "gone") != wanted.get(path, "gone"):
            what = "is not the fork's" if path not in wanted else "is missing" if path not in found else "differs"
            yield f"{path}: {'is missing' if found.get(path) == 'gone' else what}"
