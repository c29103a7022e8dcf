"""Where upstream comes from: a release, a git ref or a directory becomes one pristine directory. Its code is never run."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from ..errors import Rejected
from ..system.durable import lock, rejecting_os_errors, remove_tree, write_atomic
from ..system.gitrepo import git, text, tip
from . import pristine, registry
from .archive import BadArchive, extract

GRAMMAR = "pypi:VERSION, pypi:latest, git:URL_OR_PATH@REF or path:DIR"
UNDATED = 1_704_067_200
"""The date of a directory's commits, 2024-01-01: its files' own dates change with every copy."""
_SOURCE_HEAD = "refs/source/HEAD"
_REFSPECS = (
    "+refs/heads/*:refs/heads/*",
    "+refs/tags/*:refs/tags/*",
    "+refs/remotes/*:refs/remotes/*",
    f"+HEAD:{_SOURCE_HEAD}",
)
# git archive obeys these: each would drop or rewrite upstream's bytes.
_EXACT = "* -export-ignore -export-subst -text -filter -ident -working-tree-encoding\n"


@dataclass(frozen=True)
class Spec:
    """What the user asked for: kind is pypi, git or path; ref only with git."""

    kind: str
    source: str
    ref: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.source}" + (f"@{self.ref}" if self.ref else "")


@dataclass(frozen=True)
class Upstream:
    """A pristine directory; `seconds` is the date its commits get, `mirror` the local repository a git commit is in."""

    spec: Spec
    label: str
    version: str
    root: Path
    digest: str
    git_commit: str | None
    seconds: int
    mirror: Path | None = None


@dataclass(frozen=True)
class _Note:
    """Written beside an unpacked directory once it is complete."""

    version: str
    digest: str
    seconds: int


def parse_spec(text: str) -> Spec:
    """Read a --upstream argument."""
    kind, _, rest = text.partition(":")
    source, at, ref = rest.rpartition("@") if kind == "git" else (rest, "", "")
    bad = {
        "unknown kind": kind not in _FETCHERS,
        "nothing after the colon": not rest,
        "git needs URL_OR_PATH@REF": kind == "git" and not (source and at and ref),
        "an address or ref must not start with '-'": source.startswith("-") or ref.startswith("-"),
        "not a version": kind == "pypi" and rest != "latest" and not _is_version(rest),
        "not a ref": bool(re.search(r"[\s:?*\[\\]|\.\.|[\x00-\x1f]", ref)),
    }
    why = next((reason for reason, hit in bad.items() if hit), "")
    if why:
        raise Rejected(f"Not an upstream: {text!r}", why=why, fix=f"use {GRAMMAR}")
    return Spec(kind, source, ref)


def fetch(spec: Spec, cache: Path) -> Upstream:
    """The pristine directory of a spec; what the cache holds needs no network."""
    with rejecting_os_errors(f"fetching {spec}"):
        return _FETCHERS[spec.kind](spec, cache.resolve())


def _from_pypi(spec: Spec, cache: Path) -> Upstream:
    wanted = Version(registry.latest(cache) if spec.source == "latest" else spec.source)
    root, note = _unpacked(cache, f"pypi-{wanted}", lambda _: registry.sdist(wanted, cache))
    if Version(note.version) != wanted:
        raise Rejected(f"The archive of {wanted} says it is {note.version}", where=str(root), fix="use another release")
    return Upstream(spec, f"pypi:{note.version}", note.version, root, note.digest, None, note.seconds)


def _from_git(spec: Spec, cache: Path) -> Upstream:
    local = Path(spec.source).expanduser()
    url = str(local.resolve()) if local.exists() else spec.source
    if not local.exists() and ":" not in url:
        raise Rejected(f"There is no git repository at {spec.source}", fix="check the path, or give a full URL")
    mirror = cache / f"git-{hashlib.sha256(url.encode()).hexdigest()[:12]}.git"
    cache.mkdir(parents=True, exist_ok=True)
    with lock(cache / f".{mirror.name}.lock", "fetching from that repository"):
        commit = _mirrored(mirror, url, spec.ref)
    short = commit[:12]

    def archive(staging: Path) -> Path:
        made = staging / "tree.tar"
        git(mirror, "archive", "--format=tar", "--prefix=tree/", f"--output={made}", commit)
        return made

    root, note = _unpacked(cache, f"git-{short}", archive)
    return Upstream(spec, f"git:{short}", note.version, root, note.digest, commit, note.seconds, mirror)


def _mirrored(mirror: Path, url: str, ref: str) -> str:
    """The commit a ref means, from a bare copy of the repository; a full commit id already there needs no network."""
    if not (mirror / "info" / "exact").exists():
        remove_tree(mirror)
        mirror.mkdir(parents=True)
        git(mirror, "init", "--quiet", "--bare")
        # A user's checkout may fetch one commit from here by its id.
        git(mirror, "config", "uploadpack.allowAnySHA1InWant", "true")
        write_atomic(mirror / "info" / "attributes", _EXACT.encode())
        write_atomic(mirror / "info" / "exact", b"")
    full = re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", ref)
    if full and tip(mirror, ref):
        return ref
    git(
        mirror,
        "fetch",
        "--quiet",
        "--force",
        "--prune",
        "--no-tags",
        "--update-shallow",
        "--end-of-options",
        url,
        *_REFSPECS,
    )
    named = [_SOURCE_HEAD] if ref == "HEAD" else [f"refs/heads/{ref}", f"refs/tags/{ref}", ref]
    commit = next((found for name in named if (found := tip(mirror, name))), None)
    if commit is None:
        raise _missing_ref(mirror, url, ref)
    return commit


def _missing_ref(mirror: Path, url: str, ref: str) -> Rejected:
    names = [
        name.split("/", 2)[2]
        for name in text(mirror, "for-each-ref", "--format=%(refname)", "refs/heads", "refs/tags").splitlines()
    ]
    near = difflib.get_close_matches(ref, names, n=5, cutoff=0.4) or names[-5:]
    return Rejected(
        f"There is no ref {ref!r} in that repository",
        where=url,
        why=f"the nearest are {', '.join(near) or 'none: it has no refs'}",
        fix="use one of them, or a full commit id",
    )


def _from_path(spec: Spec, cache: Path) -> Upstream:
    root = Path(spec.source).expanduser().resolve()
    if not root.is_dir():
        raise Rejected(f"There is no directory {spec.source}", fix="check the path")
    version = pristine.version(root)
    commit = tip(root, "HEAD") if (root / ".git").exists() else None
    return Upstream(spec, f"path:{version}", version, root, pristine.digest(root), commit, UNDATED)


def _unpacked(cache: Path, name: str, archive: Callable[[Path], Path]) -> tuple[Path, _Note]:
    """A directory of the cache that is whole: reused when its digest still holds, made anew otherwise."""
    cache.mkdir(parents=True, exist_ok=True)
    root, note_file, staging = cache / name, cache / f"{name}.json", cache / f".{name}.part"
    with lock(cache / f".{name}.lock", f"unpacking {name}", patience=600):
        note = _read_note(note_file)
        if note and root.is_dir() and pristine.digest(root) == note.digest:
            return root, note
        note_file.unlink(missing_ok=True)
        remove_tree(staging)
        staging.mkdir()
        try:
            source = archive(staging)
            _extract_or_drop(source, staging / "tree")
            fresh = staging / "tree"
            note = _Note(pristine.version(fresh), pristine.digest(fresh), pristine.newest(fresh))
            remove_tree(root)
            os.rename(fresh, root)
            write_atomic(note_file, json.dumps(asdict(note)).encode())
        finally:
            remove_tree(staging)
    return root, note


def _extract_or_drop(archive: Path, into: Path) -> None:
    try:
        extract(archive, into)
    except BadArchive:
        archive.unlink(missing_ok=True)
        raise


def _read_note(path: Path) -> _Note | None:
    try:
        return _Note(**json.loads(path.read_bytes()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


_FETCHERS: dict[str, Callable[[Spec, Path], Upstream]] = {"pypi": _from_pypi, "git": _from_git, "path": _from_path}
