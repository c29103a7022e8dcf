"""The locks of one meeting file.

Record locks, of the kind that belongs to a process: a forked child has none of them and cannot keep one alive, and the
kernel names the process that holds one. They have one trap: a process loses all it has on a file when it closes any
descriptor of it. So every process opens a file once, here, and keeps it open.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..errors import GH200Error
from .places import SUFFIX, Key, folders, refusal

_FLOCK = struct.Struct("hhqqi4x")
_CLAIM = 0
_LAST = 1 << 62
_BUSY = frozenset({errno.EACCES, errno.EAGAIN})


class NoMeeting(GH200Error):
    """There is no place where processes could meet."""


class GivenWord(NamedTuple):
    """The position of a word's byte, taken apart. The last part tells two words of a reused process number apart."""

    position: int

    @classmethod
    def of(cls, pid: int, descriptor: int) -> GivenWord:
        return cls(1 + ((pid << 24 | descriptor) << 15 | secrets.randbelow(1 << 15)))

    @property
    def pid(self) -> int:
        return (self.position - 1) >> 39

    @property
    def descriptor(self) -> int:
        return (self.position - 1) >> 15 & 0xFFFFFF


class MeetingFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        # Locks of one process do not keep its own threads apart.
        self.busy = threading.Lock()
        self._own: set[GivenWord] = set()
        self._descriptor = self._opened()

    def _opened(self) -> int:
        return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def claim(self, *, shared: bool) -> bool:
        """Takes the claim if it can be had now, on the file that is there now."""
        if not self._set(fcntl.F_RDLCK if shared else fcntl.F_WRLCK, _CLAIM):
            return False
        if self._is_there():
            return True
        # The last user removed it. Nothing is held on the old one: it is removed only where nobody has given a word.
        self.let_go()
        os.close(self._descriptor)
        self._descriptor = self._opened()
        return False

    def _is_there(self) -> bool:
        mine = os.fstat(self._descriptor)
        try:
            found = os.stat(self.path, follow_symlinks=False)
        except OSError:
            return False
        return (mine.st_dev, mine.st_ino) == (found.st_dev, found.st_ino)

    def let_go(self) -> None:
        self._set(fcntl.F_UNLCK, _CLAIM)

    def holder(self) -> int | None:
        """The process that has the claim, or one of those that share it."""
        found = self._ask(_CLAIM, _CLAIM)
        return found[1] if found else None

    def give(self, word: GivenWord) -> None:
        self._set(fcntl.F_WRLCK, word.position)
        self._own.add(word)

    def take_back(self, word: GivenWord) -> None:
        self._own.discard(word)
        self._set(fcntl.F_UNLCK, word.position)

    def words(self) -> list[GivenWord]:
        """Those other processes have given, in the order of their process numbers."""
        return sorted(self._words(1, _LAST))

    def _words(self, first: int, last: int) -> Iterator[GivenWord]:
        # The kernel names one lock of a range at a time, any of them.
        if first <= last and (found := self._ask(first, last)):
            word = GivenWord(found[0])
            if word.pid == found[1]:
                yield word
            yield from self._words(first, word.position - 1)
            yield from self._words(word.position + 1, last)

    def remove_if_last(self) -> None:
        """Where neither this process nor another has anything to do with it. One that has just opened it will notice."""
        # It may be the end of an arena, and that may come at any moment of this process: it never waits.
        if not self.busy.acquire(blocking=False):
            return
        try:
            if not self._own and self._set(fcntl.F_WRLCK, _CLAIM):
                try:
                    if self._is_there() and not self.words():
                        self.path.unlink(missing_ok=True)
                finally:
                    self.let_go()
        finally:
            self.busy.release()

    def _set(self, kind: int, position: int) -> bool:
        wanted = _FLOCK.pack(kind, os.SEEK_SET, position, 1, 0)
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETLK, wanted)
        except OSError as error:
            if error.errno in _BUSY:
                return False
            raise
        return True

    def _ask(self, first: int, last: int) -> tuple[int, int] | None:
        """Position and process of a lock in the way of one on that range; this process's own are not."""
        wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, first, last - first + 1, 0)
        kind, _, position, _, pid = _FLOCK.unpack(fcntl.fcntl(self._descriptor, fcntl.F_GETLK, wanted))
        return None if kind == fcntl.F_UNLCK else (position, pid)


_files: dict[Path, MeetingFile] = {}
_lock = threading.Lock()


def meeting_file(path: Path) -> MeetingFile:
    with _lock:
        if path not in _files:
            _files[path] = MeetingFile(path)
        return _files[path]


def meeting_path(key: Key) -> Path:
    """The file of that key, in the first folder where it can be opened."""
    refused = []
    for folder in folders():
        if problem := refusal(folder):
            refused.append(f"{folder}: {problem}")
            continue
        path = folder / f"{key.name}{SUFFIX}"
        try:
            # Some network file systems can be written to, but not locked.
            meeting_file(path).holder()
            return path
        except OSError as error:
            refused.append(f"{path}: {error.strerror}")
    raise NoMeeting(
        "There is no folder where processes could meet to share a dataset in RAM.",
        where=key.root,
        why="\n".join(refused),
        fix="set TMPDIR to a folder of your own",
    )


def _in_a_child() -> None:
    global _lock
    # The locks are its parent's; the descriptors stay open, which costs nothing.
    _lock = threading.Lock()
    _files.clear()


os.register_at_fork(after_in_child=_in_a_child)
