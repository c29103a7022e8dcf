"""A path to staged bytes, for openers that take nothing else (audio, video): a memory file of its own while it is open."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import Any

from ...errors import printable
from .arena import SharedArena
from .memory_files import MEDIA, NAME, memory_file
from .registry import staged

logger = logging.getLogger("gh200.in_memory")

_from_disk: ContextVar[bool] = ContextVar("gh200_media_from_disk", default=False)
_said: set[str] = set()


class StagedPath(str):
    """Leads to the bytes, also for another process, as long as it is referred to."""


def staged_path(arena: SharedArena, number: int, name: str) -> StagedPath:
    """The name is kept, as openers judge by its end: a link to the descriptor, in a directory of its own."""
    descriptor = memory_file(MEDIA)
    directory = ""
    try:
        rest = memoryview(arena.read(number))
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        directory = tempfile.mkdtemp(prefix=f"{NAME}-{MEDIA}-")
        link = os.path.join(directory, os.path.basename(name))
        # Not "self": a decoder may be a process of its own.
        os.symlink(f"/proc/{os.getpid()}/fd/{descriptor}", link)
    except BaseException:
        _remove(descriptor, directory, os.getpid())
        raise
    path = StagedPath(link)
    weakref.finalize(path, _remove, descriptor, directory, os.getpid())
    return path


def _remove(descriptor: int, directory: str, pid: int) -> None:
    # A child made by fork has a copy of the path; what it leads to is its parent's.
    if os.getpid() == pid:
        os.close(descriptor)
        if directory:
            shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def from_disk() -> Iterator[None]:
    """What is opened by path in here is the file itself."""
    before = _from_disk.set(True)
    try:
        yield
    finally:
        _from_disk.reset(before)


def _in_ram(source: Any) -> Any:
    """What upstream should open in the place of a file that is in RAM; everything else stays what it is."""
    known = staged()
    if known is None or _from_disk.get() or not isinstance(source, str | Path):
        return source
    path = os.path.join(os.getcwd(), source)
    for backend in known.live():
        try:
            found = backend.path_in_ram(path)
        except OSError as error:
            if (text := str(error)) not in _said:
                _said.add(text)
                logger.warning(
                    "(id=%s) %s is opened on disk, not in RAM: %s", backend.id, printable(str(source)), error
                )
            return source
        if found is not None:
            return found
    return source


def audio_loader(load: Callable[..., Any]) -> Callable[..., Any]:
    """SimpleTuner opens audio of a local dataset by path, bypassing its data backend."""

    # The run is looked up at each call: a loader may be imported before the run begins.
    @wraps(load)
    def from_ram(*args: Any, **kwargs: Any) -> Any:
        # A path to bytes in RAM is valid as long as it is referenced.
        opened = [_in_ram(value) for value in args]
        by_name = {name: _in_ram(value) for name, value in kwargs.items()}
        return load(*opened, **by_name)

    return from_ram
