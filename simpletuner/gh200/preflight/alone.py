"""One run at a time in an output folder: two would take turns at the same checkpoints, and each resume from the other's."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

from ..errors import GH200Error

NAME = ".simpletuner-gh200-run"
_TRIES = 3
_FLOCK = struct.Struct("hhqqi4x")


class _Lock:
    """A record lock: the kernel drops it with the process, no forked child has it, and its holder has a name.

    A process loses it when it closes any descriptor of the file, so a path is opened once and stays open.
    """

    _opened: ClassVar[dict[Path, _Lock]] = {}

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = self._open()

    @classmethod
    def of(cls, path: Path) -> _Lock:
        if path not in cls._opened:
            cls._opened[path] = cls(path)
        return cls._opened[path]

    def _open(self) -> int:
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def take(self) -> bool:
        """Whether it was free, on the file that is there now: the run before removes it when it lets go."""
        for _ in range(_TRIES):
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                return False
            if self._is_there():
                return True
            os.close(self._descriptor)
            self._descriptor = self._open()
        return False

    def holder(self) -> int | None:
        wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, *_, pid = _FLOCK.unpack(fcntl.fcntl(self._descriptor, fcntl.F_GETLK, wanted))
        return None if kind == fcntl.F_UNLCK else pid

    def _is_there(self) -> bool:
        """Whether the path still names the file that is locked: somebody may have removed the directory."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), os.stat(self._path))
        except FileNotFoundError:
            return False

    def let_go(self) -> None:
        if self._is_there():
            self._path.unlink(missing_ok=True)
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN)


def claim_output(folder: object, environ: Mapping[str, str]) -> Callable[[], None]:
    """Until what it returns is called, or the process ends. The first rank claims it for all."""
    if not folder or not isinstance(folder, str) or environ.get("RANK", "0") != "0":
        return _nothing
    place = Path(folder).expanduser().absolute()
    try:
        place.mkdir(parents=True, exist_ok=True)
        lock = _Lock.of(place / NAME)
        if not lock.take():
            raise _another(place, lock.holder())
    except OSError as error:
        if not place.is_dir():
            raise GH200Error(
                "The output folder cannot be made.",
                where=f"output_dir {place}",
                why=str(error.strerror or error),
                fix="name another output_dir",
            ) from error
        # A file system without locks, or a folder of somebody else: nothing can be told, and upstream says the rest.
        return _nothing
    return lock.let_go


def _nothing() -> None:
    return None


def _another(place: Path, holder: int | None) -> GH200Error:
    return GH200Error(
        "Another run is at work in this output folder.",
        where=f"output_dir {place}",
        why=f"process {holder} holds it" if holder else "it was taken this moment",
        fix="wait for it, end it, or give this run another output_dir",
    )
