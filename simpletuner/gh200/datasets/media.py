"""A path to staged bytes, for openers that take nothing else (audio, video): a memory file of its own while it is open."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .arena import SharedArena
from .mapping import memory_file


@contextmanager
def opened_by_path(arena: SharedArena, number: int, name: str) -> Iterator[str]:
    """The name is kept, as openers judge by its end: a link to the descriptor, in a folder of its own."""
    descriptor = memory_file("media")
    try:
        view = arena.view_of(number)
        rest = memoryview(arena.read(number)) if view is None else view
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        with tempfile.TemporaryDirectory(prefix="simpletuner-gh200-media-") as folder:
            link = Path(folder) / os.path.basename(name)
            # Not "self": a decoder may be a process of its own.
            link.symlink_to(f"/proc/{os.getpid()}/fd/{descriptor}")
            yield str(link)
            with suppress(OSError):
                link.unlink()
    finally:
        os.close(descriptor)
