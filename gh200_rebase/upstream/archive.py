"""Unpacks an archive nobody vouched for: it lands whole and inside its directory, or not at all."""

from __future__ import annotations

import tarfile
import unicodedata
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..errors import Rejected
from ..system.durable import rejecting_os_errors, remove_tree

MAX_BYTES = 2 * 1024**3
MAX_MEMBERS = 100_000
MAX_DEPTH = 64
# A hard link to a member that is not there is a KeyError.
_BROKEN = (tarfile.TarError, EOFError, zlib.error, ValueError, KeyError)


class BadArchive(Rejected):
    """The archive itself is to blame, not the disk: it is of no use to anybody."""


@dataclass(frozen=True)
class Member:
    """One entry of an archive."""

    name: str
    kind: str
    size: int
    target: str = ""


def extract(archive: Path, into: Path) -> None:
    """Unpack a .tar or .tar.gz into a directory that does not exist yet, without its single top directory."""
    staging = into.with_name(f".{into.name}.unpacking")
    with rejecting_os_errors(f"unpacking {archive.name}"):
        remove_tree(staging)
        try:
            with _blaming(archive):
                _untar(archive, staging)
            tops = list(staging.iterdir())
            single = len(tops) == 1 and tops[0].is_dir() and not tops[0].is_symlink()
            (tops[0] if single else staging).rename(into)
        finally:
            remove_tree(staging)


def read_members(archive: Path) -> dict[str, bytes]:
    """The plain files of a source archive, by path below its top directory, without writing anything."""
    with rejecting_os_errors(f"reading {archive.name}"), _blaming(archive), tarfile.open(archive) as tar:
        check(archive, (_tar_member(info) for info in tar))
        found = {info.name: handle.read() for info in tar if info.isreg() and (handle := tar.extractfile(info))}
    return {name.partition("/")[2]: data for name, data in found.items()}


@contextmanager
def _blaming(archive: Path) -> Iterator[None]:
    try:
        yield
    except (*_BROKEN, OSError) as error:
        # A damaged gzip is an OSError too, but one without a number.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise BadArchive(
            "The archive is damaged",
            where=str(archive),
            why=str(error) or type(error).__name__,
            fix="the file is of no use: fetch it again",
        ) from error


def _untar(archive: Path, staging: Path) -> None:
    with tarfile.open(archive) as tar:
        check(archive, (_tar_member(info) for info in tar))
        staging.mkdir(parents=True)
        tar.extractall(staging, filter=_plain)


def _plain(info: tarfile.TarInfo, directory: str) -> tarfile.TarInfo:
    # A hard link shares its target's mode: what its own header says must not change that.
    mode = None if info.islnk() else 0o755 if info.isdir() or info.mode & 0o100 else 0o644
    return tarfile.data_filter(info, directory).replace(mode=mode, deep=False)  # type: ignore[arg-type]


def _tar_member(info: tarfile.TarInfo) -> Member:
    kinds = {"isdir": "directory", "issym": "symlink", "islnk": "hardlink", "isreg": "file"}
    kind = next((name for test, name in kinds.items() if getattr(info, test)()), "special")
    return Member(info.name, kind, info.size, target=info.linkname)


def check(archive: Path, members: Iterable[Member]) -> None:
    """Reject the first member that could land outside, hide another one, or fill the disk."""
    spellings: dict[str, Member] = {}
    total = 0
    for count, member in enumerate(members, 1):
        total += member.size
        path = PurePosixPath(member.name)
        reason = (
            name_problem(member.name)
            or ("is neither a file, a directory nor a link" if member.kind == "special" else "")
            or _link_problem(path, member)
            or _clash(path, member, spellings)
            or (f"comes after {MAX_MEMBERS} others" if count > MAX_MEMBERS else "")
            or (f"takes the unpacked size over {MAX_BYTES >> 30} GiB" if total > MAX_BYTES else "")
        )
        if reason:
            raise BadArchive(
                f"The archive holds a member that is not safe to unpack: {member.name!r}",
                where=str(archive),
                why=f"it {reason}",
                fix="do not use this archive; fetch the release again from a source you trust",
            )


def name_problem(name: str) -> str:
    """Why a path of an archive, a git tree or a patch must not be written; empty when it may."""
    path = PurePosixPath(name)
    rules = {
        "has an absolute path": path.is_absolute(),
        "has no name": not path.parts,
        "points out of its directory with '..'": ".." in path.parts,
        "has a backslash or a control character in its name": any(c == "\\" or ord(c) < 32 for c in name),
        f"is more than {MAX_DEPTH} directories deep": len(path.parts) > MAX_DEPTH,
        "would plant a .git directory": any(part.casefold() == ".git" for part in path.parts),
    }
    return next((reason for reason, hit in rules.items() if hit), "")


def _link_problem(path: PurePosixPath, member: Member) -> str:
    target = PurePosixPath(member.target)
    if member.kind == "hardlink":
        same_top = target.parts[:1] == path.parts[:1]
        return "" if same_top and not name_problem(member.target) else f"is a link to {member.target!r}, outside"
    if member.kind != "symlink":
        return ""
    # '..' only in front: behind a directory that is itself a link it would mean another place than it reads.
    ups = next((i for i, part in enumerate(target.parts) if part != ".."), len(target.parts))
    depth = len(path.parts) - 2
    inside = not target.is_absolute() and ups <= depth and ".." not in target.parts[ups:]
    return "" if inside else f"is a link to {member.target!r}, outside"


def _clash(path: PurePosixPath, member: Member, spellings: dict[str, Member]) -> str:
    for place in (*path.parents, path):
        name = str(place)
        this = Member(name, member.kind if place == path else "directory", 0)
        first = spellings.setdefault(unicodedata.normalize("NFC", name).casefold(), this)
        if first.name != name:
            return f"differs from {first.name!r} only in case or in how its letters are composed"
        if first is not this and not first.kind == this.kind == "directory":
            return f"shares {name!r} with another member: a file, a link or a directory, but not two of them"
    return ""
