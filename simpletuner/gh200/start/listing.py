"""The listing of a folder tree: only folders that have changed since the last start are looked into."""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

from simpletuner.helpers.training.state_tracker import StateTracker

from .record import clock_of, load, save, settled, stat_of

FOLDER = "gh200_start"

Entries = tuple[list[str], list[str]]


def walked(backend: Any, top: Any) -> Iterator[tuple[str, list[str], list[str]]] | None:
    """As `os.walk` with links followed; None: not ours."""
    output = getattr(StateTracker.get_args(), "output_dir", None)
    if not output or not isinstance(top, str | os.PathLike):
        return None
    return _Walk(Path(output) / FOLDER, os.fspath(top)).folders(
        getattr(backend.accelerator, "is_local_main_process", True)
    )


class _Walk:
    def __init__(self, kept: Path, top: str) -> None:
        self._top, self._key = top, os.path.abspath(top)
        name = blake2b(self._key.encode(errors="surrogateescape"), digest_size=12).hexdigest()
        self._file = kept / f"listing-{name}-{os.geteuid()}.gh200"
        self._known: dict[str, tuple[tuple[int, ...], list[str], list[str]]] = load(self._file, self._key) or {}
        self._now: dict[str, tuple[tuple[int, ...], list[str], list[str]]] = {}
        self._changed = False

    def folders(self, saves: bool) -> Iterator[tuple[str, list[str], list[str]]]:
        clock = self._clock()
        pending = [self._top]
        while pending:
            folder = pending.pop()
            found = self._entries(folder, clock)
            if found is None:
                continue
            dirs, files = found
            yield folder, dirs, files
            # Upstream has taken out of `dirs` what it does not want to see.
            pending += [os.path.join(folder, name) for name in reversed(dirs)]
        if saves and (self._changed or len(self._now) != len(self._known)):
            save(self._file, self._key, self._now)

    def _clock(self) -> int:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
        except OSError:
            return 0
        return clock_of(self._file.parent) or 0

    def _entries(self, folder: str, clock: int) -> Entries | None:
        try:
            stat = stat_of(folder)
            known = self._known.get(folder)
            if known is not None and known[0] == stat:
                self._now[folder] = known
                return list(known[1]), known[2]
            dirs, files, links = _look_into(folder)
        except OSError:
            return None
        # What a link leads to may become something else without a trace in this folder.
        if not links and settled(stat, clock):
            self._changed = True
            self._now[folder] = stat, list(dirs), files
        return dirs, files


def _look_into(folder: str) -> tuple[list[str], list[str], bool]:
    dirs: list[str] = []
    files: list[str] = []
    links = False
    with os.scandir(folder) as entries:
        for entry in entries:
            links = links or entry.is_symlink()
            try:
                is_folder = entry.is_dir()
            except OSError:
                is_folder = False
            (dirs if is_folder else files).append(entry.name)
    return dirs, files, links
