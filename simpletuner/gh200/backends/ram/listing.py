"""Which files of a dataset directory are staged, and what the page cache may forget about them afterwards."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...errors import GH200Error, printable

# Upstream keeps these up to date while it runs; a copy would show one rank what another has replaced.
_REWRITTEN_PREFIX = "aspect_ratio_bucket_"
_REWRITTEN_SUFFIXES = (".pt", ".pth", ".ckpt", ".safetensors")
_SKIPPED_DIRECTORIES = frozenset(
    {".Spotlight-V100", ".Trashes", ".fseventsd", ".TemporaryItems", ".zfs", ".ipynb_checkpoints"}
)

# Of the page cache, at either end of a file.
_KEPT_BYTES = 64 << 10


class SourceFile(NamedTuple):
    """A file as it was found on disk."""

    path: str
    size: int
    mtime_ns: int
    device: int
    inode: int


@dataclass
class Listing:
    """Every file once, all its names, and what could not be looked at."""

    root: str
    files: list[SourceFile] = field(default_factory=list)
    names: list[tuple[str, int]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(file.size for file in self.files)


def is_rewritten(name: str) -> bool:
    """Whether SimpleTuner rewrites files of that name while it runs."""
    return name.startswith(_REWRITTEN_PREFIX) or name.lower().endswith(_REWRITTEN_SUFFIXES)


def list_dataset(root: str | os.PathLike[str]) -> Listing:
    """Walks the directory as upstream does: links are followed, a directory reached twice is taken once."""
    top = os.path.abspath(root)
    listing = Listing(top)
    numbers: dict[tuple[int, int], int] = {}
    seen: set[tuple[int, int]] = set()
    pending = [top]
    while pending:
        directory = pending.pop()
        try:
            identity = os.stat(directory)
            if (identity.st_dev, identity.st_ino) in seen:
                continue
            seen.add((identity.st_dev, identity.st_ino))
            with os.scandir(directory) as inside:
                entries = list(inside)
        except OSError as error:
            if directory == top:
                raise _unusable(top, error) from error
            listing.problems.append(f"{directory}: {error.strerror}")
            continue
        pending += reversed(_sort_out(entries, listing, numbers))
    return listing


def _sort_out(entries: Sequence[os.DirEntry[str]], listing: Listing, numbers: dict[tuple[int, int], int]) -> list[str]:
    """Adds the files of one directory to the listing; returns the directories below it."""
    directories = set()
    for entry in sorted(entries, key=lambda entry: entry.name):
        try:
            if entry.is_dir():
                if entry.name not in _SKIPPED_DIRECTORIES:
                    directories.add(entry.path)
                continue
            if is_rewritten(entry.name):
                continue
            status = entry.stat()
        except OSError as error:
            listing.problems.append(f"{entry.path}: {error.strerror}")
            continue
        if stat.S_ISREG(status.st_mode):
            identity = (status.st_dev, status.st_ino)
            number = numbers.setdefault(identity, len(listing.files))
            if number == len(listing.files):
                listing.files.append(SourceFile(entry.path, status.st_size, status.st_mtime_ns, *identity))
            listing.names.append((entry.path, number))
    # In the system's order: of two names of a directory, upstream lists the files under the one it is given first.
    return [entry.path for entry in entries if entry.path in directories]


def open_regular(path: str) -> int:
    """A descriptor to read from. An ordinary open waits for ever where a pipe has taken the file's place."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file any more", path)
    return descriptor


def _unusable(root: str, error: OSError) -> GH200Error:
    return GH200Error(
        "The directory of an in-memory dataset cannot be read.",
        where=printable(root),
        why=error.strerror or str(error),
        fix="check instance_data_dir and its permissions",
    )


def drop_page_cache(files: Sequence[SourceFile]) -> None:
    """Gives the second copy of staged files back to the system, but for what upstream reads on disk: headers, also at the end."""
    for file in files:
        if file.size <= 2 * _KEPT_BYTES:
            continue
        try:
            descriptor = open_regular(file.path)
        except OSError:
            # It was reported when it was staged, or will be at the next check.
            continue
        try:
            os.posix_fadvise(descriptor, _KEPT_BYTES, file.size - 2 * _KEPT_BYTES, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
