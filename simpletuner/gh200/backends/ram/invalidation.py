"""Takes files out of the arenas: those that a backend is about to change, and those that somebody else has changed."""

from __future__ import annotations

import os
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .arena import SharedArena, open_here
from .index import NOT_STAGED
from .listing import open_regular

CHUNK = 1024
# Threads help where a look at a file takes long (a network disk); where it does not, they are in each other's way.
_THREADS = 32
_SLOW_SECONDS = 30e-6 * CHUNK

CHANGED = "size or modification time differs"
REPLACED = "other content under the same size and modification time"
GONE = "it is gone, or its directory cannot be entered"
FORBIDDEN = "no permission to read it"


def forget_path(filepath: Any) -> None:
    """Before a file is written or deleted: by its names, and by what it is, in every arena that is open here."""
    paths: set[str] = set()
    identity: tuple[int, int] | None = None
    try:
        path = os.fsdecode(os.path.abspath(filepath))
        directory, name = os.path.split(path)
        paths = {path, os.path.join(os.path.realpath(directory), name), os.path.realpath(path)}
        status = os.stat(filepath)
        identity = (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None
    except (OSError, ValueError, TypeError):
        # Nothing is there: only a name that was staged, and has been gone since, can be meant.
        pass
    for arena in open_here():
        for spelled in paths:
            if (number := arena.find(spelled)) is not None:
                arena.forget(number)
        if identity is not None:
            arena.forget_file(*identity)


def forget_changed(arena: SharedArena) -> list[str]:
    """Takes files that are no longer what was staged out of the arena; returns their names with the reason."""
    problems: list[str] = []
    fresh: set[int] = set()

    def look(start: int) -> None:
        for position in range(start, min(start + CHUNK, arena.index.name_count)):
            name, number = arena.index.name(position)
            # A file that was found changed under one of its names is looked at under the others too, to name them all.
            if number == NOT_STAGED or (arena.is_forgotten(number) and number not in fresh):
                continue
            path = arena.prefix + os.fsdecode(name)
            if reason := _change(arena, path, position, number):
                fresh.add(number)
                arena.forget(number)
                problems.append(f"{path}: {reason}")

    starts = list(range(0, arena.index.name_count, CHUNK))
    began = time.monotonic()
    look(0)
    slow = time.monotonic() - began > _SLOW_SECONDS
    with ThreadPoolExecutor(_THREADS if slow else 1) as pool:
        list(pool.map(look, starts[1:]))
    return problems


def _change(arena: SharedArena, path: str, position: int, number: int) -> str:
    """Why the file is no longer what was staged; empty where it is."""
    try:
        status = os.stat(path)
    except OSError:
        return GONE
    row = arena.row(number)
    if (status.st_size, status.st_mtime_ns) != (row.size, row.mtime_ns):
        return CHANGED
    ctime, inode = arena.accepted.get(position, (row.ctime_ns, row.inode))
    if status.st_ctime_ns == ctime and inode in (None, status.st_ino):
        return ""
    # Another file under this name, or one written to and given its old time; or only a link more, or other rights.
    try:
        with open(open_regular(path), "rb") as file:
            same = file.read() == arena.read(number)
    except PermissionError:
        return FORBIDDEN
    except OSError:
        return GONE
    if not same:
        return REPLACED
    # Where only the inode is another one (file systems that make numbers up), it means nothing from here on.
    arena.accepted[position] = (status.st_ctime_ns, None if status.st_ctime_ns == ctime else status.st_ino)
    return ""
