"""One run at a time in an output directory: two would take turns at the same checkpoints, and each resume from the other's."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from ..errors import GH200Error

NAME = ".simpletuner-gh200-run"


def claim_output(directory: object, environ: Mapping[str, str]) -> Callable[[], None]:
    """Until what it returns is called, or the process ends. The first rank claims it for all."""
    if not directory or not isinstance(directory, str) or environ.get("RANK", "0") != "0":
        return lambda: None
    place = Path(directory).expanduser().absolute()
    try:
        place.mkdir(parents=True, exist_ok=True)
        descriptor = _locked(place / NAME)
    except OSError as error:
        if not place.is_dir():
            raise GH200Error(
                "The output directory cannot be made.",
                where=f"output_dir {place}",
                why=str(error.strerror or error),
                fix="name another output_dir",
            ) from error
        # A file system without locks, or a directory of somebody else: nothing can be checked, and upstream reports the rest.
        return lambda: None
    return lambda: _let_go(place / NAME, descriptor)


def _locked(path: Path) -> int:
    """A descriptor with a record lock: the kernel drops it with the process, and no forked child has it.

    A process loses it when it closes any descriptor of the file, so one that has it stays open.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            holder = os.pread(descriptor, 20, 0).decode()
            os.close(descriptor)
            raise _another(path.parent, holder) from error
        # The run before removes the file when it lets go, perhaps after it was opened here.
        if os.fstat(descriptor).st_nlink:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            return descriptor
        os.close(descriptor)


def _let_go(path: Path, descriptor: int) -> None:
    # Where the directory was moved away, another run may have a file of its own at the path.
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            path.unlink()
    fcntl.lockf(descriptor, fcntl.LOCK_UN)


def _another(place: Path, holder: str) -> GH200Error:
    return GH200Error(
        "Another run is at work in this output directory.",
        where=f"output_dir {place}",
        why=f"process {holder} holds it" if holder else "it was taken this moment",
        fix="wait for it, end it, or give this run another output_dir",
    )
