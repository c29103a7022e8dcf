"""What an earlier start found out, in files that may be deleted at any time: whole or not there, this user's, this version's."""

from __future__ import annotations

import logging
import marshal
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from struct import error as struct_error
from typing import Any, BinaryIO

import simpletuner

from ..own_files import write_whole

logger = logging.getLogger("gh200.start")

# Changes with the layout of any record.
_VERSION = 1
# The coarsest clock of a file system: FAT's.
RACY_NS = 2_000_000_000

Stat = tuple[int, int, int, int, int]
PACKED_STAT = Struct("5q")
_LENGTH = Struct("<Q")


def stat_of(path: str) -> Stat:
    """What changes when a file or the entries of a folder do."""
    return _facts(os.stat(path))


def stats_of(paths: Iterable[str]) -> Iterator[Stat]:
    """Of many files, those of one folder behind each other: the way to a folder is gone once."""
    at, folder = -1, None
    try:
        for path in paths:
            head, slash, name = path.rpartition("/")
            if head != folder:
                if at >= 0:
                    os.close(at)
                    at = -1
                at, folder = os.open(head + slash or ".", os.O_RDONLY | os.O_DIRECTORY), head
            yield _facts(os.stat(name, dir_fd=at))
    finally:
        if at >= 0:
            os.close(at)


def _facts(found: os.stat_result) -> Stat:
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev


def settled(stat: Stat, clock: int) -> bool:
    """Git's rule: what was changed as late as it was looked at may have been changed again without a trace."""
    return max(stat[0], stat[1]) < clock - RACY_NS


def clock_of(folder: Path) -> int | None:
    """The time by the file system's own clock, which need not be this machine's; None where nothing can be written."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        return None


def digest_of(names: Iterable[str]) -> bytes:
    return blake2b("\0".join(names).encode(errors="surrogateescape")).digest()


def record_beside(file: Path, what: str) -> Path:
    """Each user has records of their own: nobody reads another's, and nobody is in another's way."""
    return file.with_name(f"{file.stem}.{what}-{os.geteuid()}.gh200")


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
        _told(file, error)
        return None


def save(file: Path, key: object, content: Any) -> None:
    """In one step, so that a start beside this one, or one after a crash, finds the old record or the new one."""
    _write(file, key, marshal.dumps(content))


def write_record(file: Path, key: object, table: bytes, rest: bytes) -> None:
    """A record of which only the table is taken into memory; what follows is read piece by piece."""
    _write(file, key, _LENGTH.pack(len(table)) + table + rest)


def open_record(file: Path, key: object) -> tuple[BinaryIO, int, Any] | None:
    """The open file, where what follows the table begins, and the table; None as with `load`."""
    try:
        opened = file.open("rb", buffering=0)
        if os.fstat(opened.fileno()).st_uid != os.geteuid():
            return None
        head, digest = opened.read(len(_head(key, b""))), blake2b()
        length = opened.read(_LENGTH.size)
        table = opened.read(_LENGTH.unpack(length)[0])
        for part in (length, table):
            digest.update(part)
        start = opened.tell()
        buffer = memoryview(bytearray(1 << 20))
        while count := opened.readinto(buffer):
            digest.update(buffer[:count])
        return (opened, start, marshal.loads(table)) if head == _made_by(key) + digest.digest() else None
    except (OSError, EOFError, ValueError, TypeError, MemoryError, OverflowError, struct_error) as error:
        _told(file, error)
        return None


def _write(file: Path, key: object, content: bytes) -> None:
    try:
        write_whole(file, _head(key, content) + content)
    except OSError as error:
        logger.info("%s could not be written, so the next start does this work again: %s", file, error.strerror)


def _told(file: Path, error: Exception) -> None:
    if not isinstance(error, FileNotFoundError):
        logger.info("%s cannot be used and is made anew: %s", file, error)


def _head(key: object, content: bytes) -> bytes:
    return _made_by(key) + blake2b(content).digest()


def _made_by(key: object) -> bytes:
    made_by = (_VERSION, getattr(simpletuner, "__version__", ""), sys.version_info[:2], key)
    return blake2b(repr(made_by).encode(errors="surrogateescape"), digest_size=16).digest()
