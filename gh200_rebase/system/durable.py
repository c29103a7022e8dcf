"""Files that survive a kill at any moment: atomic writes, a lock that children keep, disk errors in plain words."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from ..errors import Rejected

_ENDING = (signal.SIGINT, signal.SIGTERM)
_SILENT = 2.0
"""Seconds of waiting before a message is printed."""
_FIXES = {
    errno.ENOSPC: "free some space on that disk and run the same command again",
    errno.EDQUOT: "raise the quota or free some space, then run the same command again",
    errno.EACCES: "check who owns the directory, or choose another one",
    errno.EPERM: "check who owns the directory, or choose another one",
    errno.EROFS: "choose a directory on a disk that can be written",
}


@contextmanager
def rejecting_os_errors(doing: str) -> Iterator[None]:
    """Turn what the disk says into a Rejected with a fix."""
    try:
        yield
    except OSError as error:
        raise Rejected(
            f"Could not finish {doing}",
            where=str(error.filename or ""),
            why=error.strerror or str(error),
            fix=_FIXES.get(error.errno or 0, "see the reason above, then run the same command again"),
        ) from error


def write_atomic(path: Path, data: bytes, mode: int = 0o644) -> None:
    """The file has its old content or all of the new one, also after a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        part.chmod(mode)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_tree(directory: Path) -> None:
    """Delete a directory if it exists."""
    if directory.exists():
        shutil.rmtree(directory)


def leave_signals_to_the_parent() -> None:
    """For worker processes: the one that started them says what was left, and ends them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def start_workers(pool: ProcessPoolExecutor) -> None:
    """Forks them all. A signal that comes meanwhile is heard afterwards: what its handler raises in a fork, Python drops."""
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in _ENDING}
    try:
        pool.submit(os.getpid)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


@contextmanager
def lock(path: Path, doing: str, patience: float = 10.0) -> Iterator[None]:
    """Hold an exclusive lock; git children inherit it, so after a kill it lasts as long as they do."""
    flags = os.O_RDONLY if path.is_dir() else os.O_RDONLY | os.O_CREAT
    handle = os.open(path, flags, 0o644)
    os.set_inheritable(handle, True)
    started = time.monotonic()
    announced = False
    try:
        while not _try_lock(handle):
            waited = time.monotonic() - started
            if waited > _SILENT and not announced:
                announced = True
                print(f"note: another run is {doing}; waiting for it", file=sys.stderr)
            if waited > patience:
                raise Rejected(
                    f"Another run is {doing}", where=str(path), fix="wait until it has ended, then try again"
                )
            time.sleep(0.05)
        yield
    finally:
        os.close(handle)


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
