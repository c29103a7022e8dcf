"""Looks for staged files that somebody changed behind the backend: in threads, and shared by ranks that look together."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .arena import SharedArena
from .validity import CHUNK, Reason, chunks_of

# Threads help where a look at a file takes long (a network disk); where it does not, they are in each other's way.
_FEW_THREADS, _MANY_THREADS = 4, 32
_SLOW_SECONDS = 30e-6 * CHUNK


def forget_changed(arena: SharedArena) -> list[str]:
    """Takes files that are no longer what was staged out of the arena; returns their names with the reason.

    A part that another process has looked at since this call began need not be looked at again. What that process
    found is reported here as well, once: the log of most ranks is not shown.
    """
    known = arena.reported
    began = time.monotonic_ns()
    chunks = chunks_of(arena.index.name_count)
    # Each process begins elsewhere.
    first = os.getpid() * 7919 % max(chunks, 1)
    order = [*range(first, chunks), *range(first)]
    problems: list[str] = []
    fresh: set[int] = set()

    def look(chunk: int) -> None:
        if arena.validity.stamps[chunk] < began:
            now = time.monotonic_ns()
            problems.extend(_look(arena, chunk, fresh))
            arena.validity.stamps[chunk] = now

    while order and time.monotonic_ns() - began < _SLOW_SECONDS * 1e9:
        look(order.pop())
    if order:
        slow = len(order) == chunks - 1
        with ThreadPoolExecutor(_MANY_THREADS if slow else min(_FEW_THREADS, os.cpu_count() or 1)) as pool:
            list(pool.map(look, order))
    known |= fresh
    return problems + _found_by_others(arena, known)


def _found_by_others(arena: SharedArena, known: set[int]) -> list[str]:
    if arena.validity.found == len(known):
        return []
    new = {number: reason for number, reason in arena.validity.changed() if number not in known}
    known.update(new)
    return [f"{name}: {new[number].text}" for name, number in arena.names() if number in new] if new else []


def _look(arena: SharedArena, chunk: int, fresh: set[int]) -> list[str]:
    problems, index, flags = [], arena.index, arena.validity.flags
    for position in range(chunk * CHUNK, min((chunk + 1) * CHUNK, index.name_count)):
        name, number = index.name(position)
        # A file that was found changed under one of its names is looked at under the others too, to name them all.
        if flags[number] and number not in fresh:
            continue
        path = arena.prefix + os.fsdecode(name)
        if reason := _change(arena, path, number):
            fresh.add(number)
            arena.forget(number, reason)
            problems.append(f"{path}: {reason.text}")
    return problems


def _change(arena: SharedArena, path: str, number: int) -> Reason | None:
    try:
        status = os.stat(path)
    except OSError:
        return Reason.GONE
    row = arena.row(number)
    if (status.st_size, status.st_mtime_ns) != (row.size, row.mtime_ns):
        return Reason.CHANGED
    if status.st_ctime_ns == arena.validity.ctimes[number] and status.st_ino == row.inode:
        return None
    # Another file under this name, or one written to and given its old time; or only a link more, or other rights.
    if not os.access(path, os.R_OK):
        return Reason.FORBIDDEN
    try:
        same = Path(path).read_bytes() == arena.read(number)
    except OSError:
        return Reason.GONE
    if same:
        arena.validity.ctimes[number] = status.st_ctime_ns
    return None if same else Reason.REPLACED
