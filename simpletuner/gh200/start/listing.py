"""The listing of a folder tree: only folders that have changed since the last start are looked into."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

from simpletuner.helpers.training.state_tracker import StateTracker

from ..run import current
from .record import Stat, clock_of, load, save, settled, stat_of

FOLDER = "gh200_start"

Entries = tuple[list[str], list[str]]
Matches = dict[tuple[str, tuple[str, ...] | None], list[str]]


@dataclass
class Listed:
    """A folder that this run has listed: the same paths again, not equal ones, as long as it has not changed."""

    stat: Stat
    dirs: list[str]
    matches: Matches = field(default_factory=dict)


class Listings(dict[str, Listed]):
    """By folder, as upstream names it. `strings`: paths that somebody has already, for the next listing to use."""

    def __init__(self, _: object) -> None:
        super().__init__()
        self.strings: dict[str, str] = {}


class Files(list[str]):
    """A folder's files; empty, and `again`, where the run has listed it before and is likely to ask for the same."""

    def __init__(self, folder: str, names: Iterable[str] | None, matches: Matches, strings: dict[str, str]) -> None:
        super().__init__(names or ())
        self.folder, self.again, self.matches, self.strings = folder, names is None, matches, strings


def files_to_match(files: Files, extensions: tuple[str, ...] | None, root: str, matching: list[str]) -> Iterable[str]:
    """None is left for upstream: those of these extensions are in `matching`, as it would have put them there."""
    found = files.matches.get((root, extensions))
    if found is None:
        names = _look_into(files.folder)[1] if files.again else files
        start = os.path.join(root, "")
        found = [start + name for name in names if not extensions or name.lower().endswith(extensions)]
        if files.strings:
            found = list(map(files.strings.get, found, found))
        files.matches[root, extensions] = found
    matching += found
    return ()


def walked(backend: Any, top: Any) -> Iterator[tuple[str, list[str], list[str]]] | None:
    """As `os.walk` with links followed; None: not ours."""
    output, run = getattr(StateTracker.get_args(), "output_dir", None), current()
    if not output or run is None or not isinstance(top, str | os.PathLike):
        return None
    return _Walk(Path(output) / FOLDER, os.fspath(top), run.part(Listings)).folders(
        getattr(backend.accelerator, "is_local_main_process", True)
    )


class _Walk:
    def __init__(self, kept: Path, top: str, listings: Listings) -> None:
        self._top, self._key, self._listings = top, os.path.abspath(top), listings
        name = blake2b(self._key.encode(errors="surrogateescape"), digest_size=12).hexdigest()
        self._file = kept / f"listing-{name}-{os.geteuid()}.gh200"
        self._now: dict[str, tuple[Stat, list[str], list[str]]] = {}
        self._again: dict[str, Stat] = {}
        self._changed = False

    @cached_property
    def _known(self) -> dict[str, tuple[Stat, list[str], list[str]]]:
        return load(self._file, self._key) or {}

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
        self._listings.strings = {}
        if saves:
            self._save()

    def _save(self) -> None:
        """Not where the run has listed all of it before."""
        gone = "_known" in vars(self) and len(self._now) + len(self._again) != len(self._known)
        if self._changed or gone:
            again = {folder: self._known[folder] for folder in self._again.keys() & self._known.keys()}
            again = {folder: known for folder, known in again.items() if known[0] == self._again[folder]}
            save(self._file, self._key, self._now | again)

    def _clock(self) -> int:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
        except OSError:
            return 0
        return clock_of(self._file.parent) or 0

    def _entries(self, folder: str, clock: int) -> Entries | None:
        try:
            stat = stat_of(folder)
            listed = self._listings.get(folder)
            if listed is not None and listed.stat == stat:
                self._again[folder] = stat
                return list(listed.dirs), Files(folder, None, listed.matches, {})
            known = self._known.get(folder)
            if known is not None and known[0] == stat:
                return self._kept(folder, known)
            dirs, files, links = _look_into(folder)
        except OSError:
            return None
        # What a link leads to may become something else without a trace in this folder.
        if links or not settled(stat, clock):
            self._listings.pop(folder, None)
            return dirs, Files(folder, files, {}, self._listings.strings)
        self._changed = True
        return self._kept(folder, (stat, list(dirs), files))

    def _kept(self, folder: str, found: tuple[Stat, list[str], list[str]]) -> Entries:
        stat, dirs, files = self._now[folder] = found
        listed = self._listings[folder] = Listed(stat, dirs)
        return list(dirs), Files(folder, files, listed.matches, self._listings.strings)


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
