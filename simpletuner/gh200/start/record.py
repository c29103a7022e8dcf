"""What an earlier start found out, in files that may be deleted at any time: whole or not there, this user's, this version's."""

from __future__ import annotations

import logging
import marshal
import os
import sys
import tempfile
from array import array
from collections.abc import Iterable
from hashlib import blake2b, sha256
from pathlib import Path
from struct import Struct
from typing import Any

import simpletuner

from ..own_files import write_whole
from .text import packed

logger = logging.getLogger("gh200.start")

# Changes with the layout of any record.
_VERSION = 4
# The coarsest clock of a file system: FAT's.
RACY_NS = 2_000_000_000

Stat = tuple[int, int, int, int, int]
STAT_FACTS = 5
PACKED_STAT = Struct(f"{STAT_FACTS}q")


def stat_of(path: str) -> Stat:
    """What changes when a file or the entries of a folder do."""
    found = os.stat(path)
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev


def stats_of(files: Iterable[tuple[str, str]]) -> array[int]:
    """Of many files, by folder and name, one behind the other: the way to a folder is gone once for neighbours."""
    stats, stat = array("q"), os.stat
    at, way = -1, None
    try:
        for folder, name in files:
            if folder != way:
                if at >= 0:
                    os.close(at)
                    at = -1
                at, way = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY), folder
            found = stat(name, dir_fd=at)
            stats.extend((found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev))
    finally:
        if at >= 0:
            os.close(at)
    return stats


def settled(stat: Stat, clock: int) -> bool:
    """Git's rule: what was changed as late as it was looked at may have been changed again without a trace."""
    return max(stat[0], stat[1]) < clock - RACY_NS


def all_settled(stats: array[int], clock: int) -> bool:
    """The same of what `stats_of` gives."""
    return all(max(times, default=0) < clock - RACY_NS for times in (stats[::STAT_FACTS], stats[1::STAT_FACTS]))


def clock_of(folder: Path) -> int | None:
    """The time by the file system's own clock, which need not be this machine's; None where nothing can be written."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        return None


def digest_of(names: Iterable[str]) -> bytes:
    names = names if isinstance(names, list) else list(names)
    try:
        return sha256(packed(names)).digest()
    except UnicodeEncodeError:
        # No file's names, but somebody's JSON may have them.
        return sha256("\0".join(names).encode(errors="surrogatepass")).digest()


def record_beside(file: Path, what: str, cache: str = "") -> Path:
    """Each user has records of their own: nobody reads another's, and nobody is in another's way. So has each cache of a
    dataset: two models may be trained on it in turn."""
    of = (
        f"-{blake2b(os.path.abspath(cache).encode(errors='surrogateescape'), digest_size=6).hexdigest()}"
        if cache
        else ""
    )
    return file.with_name(f"{file.stem}.{what}{of}-{os.geteuid()}.gh200")


def load(file: Path, key: object) -> Any | None:
    """The content, if the record was made for this key and is whole; otherwise None, and the work is done again."""
    try:
        with file.open("rb") as opened:
            # What marshal reads must be our own writing.
            if os.fstat(opened.fileno()).st_uid != os.geteuid():
                return None
            head, content = opened.read(len(_head(key, b""))), opened.read()
        return marshal.loads(content) if head == _head(key, content) else None
    except (OSError, EOFError, ValueError, TypeError) as error:
        if not isinstance(error, FileNotFoundError):
            logger.info("%s cannot be used and is made anew: %s", file, error)
        return None


def save(file: Path, key: object, content: Any) -> None:
    """In one step, so that a start beside this one, or one after a crash, finds the old record or the new one."""
    data = marshal.dumps(content)
    try:
        write_whole(file, _head(key, data) + data)
    except OSError as error:
        logger.info("%s could not be written, so the next start does this work again: %s", file, error.strerror)


def _head(key: object, content: bytes) -> bytes:
    made_by = (_VERSION, getattr(simpletuner, "__version__", ""), sys.version_info[:2], key)
    who = sha256(repr(made_by).encode(errors="surrogateescape"))
    return who.digest() + sha256(content).digest()
