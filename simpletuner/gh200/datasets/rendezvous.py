"""How the ranks of one machine come to share an arena: one stages, the others wait on a locked file and attach."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import stat
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import GH200Error
from ..memory.numa import cpu_node
from .arena import ArenaDamaged, Handle, SharedArena, attach

logger = logging.getLogger("gh200.in_memory")

_POLL_SECONDS = 0.1
_PATIENCE_SECONDS = 15.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class StagerFailed(GH200Error):
    """The rank that was staging for all is gone, or has given up."""


@dataclass(frozen=True)
class Run:
    """What the ranks of one run have in common; None of it where this process has no siblings."""

    identity: tuple[str, ...]
    is_first: bool = True

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Run | None:
        run_id = environment.get("TORCHELASTIC_RUN_ID", "none")
        port = environment.get("MASTER_PORT", "")
        if run_id == "none" and not port:
            return None
        restart = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
        first = environment.get("LOCAL_RANK", "0") == "0"
        return cls((run_id, environment.get("MASTER_ADDR", ""), port, restart), first)

    @property
    def patience(self) -> float:
        """How long to leave the staging to the first rank, the only one whose log upstream shows."""
        # The first rank may be bound to another node, and never come to the meeting point of this one.
        return 0.0 if self.is_first or cpu_node() is not None else _PATIENCE_SECONDS


def meeting_point(run: Run, dataset: str, root: str, *, folder: Path | None = None) -> Path:
    """The file of this run and dataset; one for each node of CPUs, as memory of another superchip is far away."""
    # A process id means something only on this machine, until it is started again, and inside one namespace.
    machine = [_BOOT_ID.read_text().strip(), os.readlink("/proc/self/ns/pid"), str(cpu_node())]
    parts = [*run.identity, dataset, os.fsencode(root).hex(), *machine]
    name = hashlib.blake2b(json.dumps(parts).encode(), digest_size=12).hexdigest()
    return (folder or _private_folder()) / f"{name}.json"


def share(
    path: Path, stage: Callable[[], SharedArena], attached: Callable[[SharedArena], None], patience: float = 0
) -> SharedArena | None:
    """The arena staged here, or a sibling's, which `attached` is then shown; None where the system refuses."""
    # Who was seen at work: only then does a free lock mean that it died. Otherwise it is left over from an earlier run.
    watched: int | None = None
    patient_until = time.monotonic() + patience
    while True:
        with _open(path) as descriptor:
            record = _Record.read(descriptor)
            if record.handle is not None:
                try:
                    arena = attach(record.handle)
                    attached(arena)
                    return arena
                except PermissionError as error:
                    logger.warning(
                        "Attaching to the RAM of process %s was refused (%s): reading from disk.", record.pid, error
                    )
                    return None
                except ArenaDamaged as error:
                    logger.warning("%s\nIt is staged again.", error)
                except OSError:
                    # Left by a run that is over; whoever gets the lock stages anew.
                    pass
            if _lock(descriptor):
                if watched is not None:
                    raise _failure(watched, _Record.read(descriptor), path)
                if _Record.read(descriptor) == record and time.monotonic() >= patient_until:
                    return _stage_for_all(path, descriptor, stage)
            elif record.handle is None and record.pid is not None and Path(f"/proc/{record.pid}").exists():
                watched = record.pid
        time.sleep(_POLL_SECONDS)


def _failure(pid: int, record: _Record, path: Path) -> StagerFailed:
    if record.error:
        return StagerFailed(
            f"Process {pid} could not stage the dataset for the other ranks.", where=str(path), why=record.error
        )
    return StagerFailed(
        f"Process {pid} ended while it was staging the dataset for the other ranks.",
        where=str(path),
        why="it released its lock and left no dataset behind",
        fix="look for its error or an out-of-memory kill in the log of the system, then start again",
    )


def _stage_for_all(path: Path, descriptor: int, stage: Callable[[], SharedArena]) -> SharedArena:
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    _write_line(descriptor, {"pid": os.getpid()})
    try:
        arena = stage()
    except BaseException as error:
        _write_line(descriptor, {"error": str(error) or type(error).__name__})
        raise
    _write_line(descriptor, {"handle": arena.handle().as_dict()})
    weakref.finalize(arena, _remove, path, os.getpid())
    return arena


def _remove(path: Path, pid: int) -> None:
    # A child made by fork has a copy of the arena, but the meeting point is its parent's.
    if os.getpid() != pid:
        return
    try:
        with path.open() as file:
            if _Record.read(file.fileno()).pid == pid:
                path.unlink()
    except FileNotFoundError:
        pass


@dataclass(frozen=True)
class _Record:
    """What has been written so far: who stages, then either the handle or the error."""

    pid: int | None = None
    handle: Handle | None = None
    error: str | None = None

    @classmethod
    def read(cls, descriptor: int) -> _Record:
        text = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        found: dict[str, Any] = {}
        # A line without its end is still being written.
        for line in text.split(b"\n")[:-1]:
            found |= json.loads(line)
        handle = found.get("handle")
        return cls(found.get("pid"), Handle.from_dict(handle) if handle else None, found.get("error"))


def _write_line(descriptor: int, data: dict[str, Any]) -> None:
    os.write(descriptor, json.dumps(data).encode() + b"\n")


@contextmanager
def _open(path: Path) -> Iterator[int]:
    """Closing it gives the lock back."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _private_folder() -> Path:
    """Every rank must come to the same folder, and no other user may write there."""
    folder = Path(tempfile.gettempdir()) / f"simpletuner-gh200-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise GH200Error(
            "The folder in which ranks meet is not private to this user.",
            where=str(folder),
            fix="remove it, or set TMPDIR to a folder of your own",
        )
    return folder
