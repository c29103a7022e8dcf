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
from .text import packed, unpacked

FOLDER = "gh200_start"
# A record is written anew when a hundredth of it has changed.
LEAST_CHANGE = 100

Extensions = tuple[str, ...] | None
Kept = tuple[Stat, list[str], bytes, dict[Extensions, bytes]]


@dataclass
class Listed:
    """A folder that this run has listed: the same paths again, not equal ones, as long as it has not changed."""

    stat: Stat
    dirs: list[str]
    paths: dict[tuple[str, Extensions], list[str]] = field(default_factory=dict)


class Listings(dict[str, Listed]):
    """By folder, as upstream names it. `strings`: paths that somebody has already, for the next listing to use."""

    def __init__(self, _: object) -> None:
        super().__init__()
        self.strings: dict[str, str] = {}


@dataclass
class Files:
    """What upstream gets in the place of a folder's files: their names, and those of them that are known to match.

    Without names the run has listed the folder before, and is likely to ask for the same."""

    folder: str
    names: bytes | None
    matches: dict[Extensions, bytes]
    paths: dict[tuple[str, Extensions], list[str]]
    strings: dict[str, str]
    changed: bool = False

    def matching(self, extensions: Extensions) -> bytes:
        found = self.matches.get(extensions)
        if found is None:
            names = packed(_look_into(self.folder)[1]) if self.names is None else self.names
            found = names
            if extensions:
                found = packed(n for part in unpacked(names) for n in part if n.lower().endswith(extensions))
            # One object is written once.
            self.matches[extensions] = names if found == names else found
            self.changed = True
        return found


def files_to_match(files: Files, extensions: Extensions, root: str, matching: list[str]) -> Iterable[str]:
    """None is left for upstream: those of these extensions are in `matching`, as it would have put them there."""
    # Upstream keeps them in a set, so their order is another in every process.
    extensions = tuple(sorted(extensions)) if extensions else None
    found = files.paths.get((root, extensions))
    if found is None:
        start = os.path.join(root, "")
        found = []
        for part in unpacked(files.matching(extensions)):
            paths = [start + name for name in part]
            found += map(files.strings.get, paths, paths) if files.strings else paths
        files.paths[root, extensions] = found
    matching += found
    return ()


def walked(backend: Any, top: Any) -> Iterator[tuple[str, list[str], Files]] | None:
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
        self._now: dict[str, Kept] = {}
        self._again: dict[str, Stat] = {}
        # Bytes of names that the record lacks.
        self._new = 0

    @cached_property
    def _known(self) -> dict[str, Kept]:
        return load(self._file, self._key) or {}

    def folders(self, saves: bool) -> Iterator[tuple[str, list[str], Files]]:
        clock = self._clock()
        pending = [self._top]
        while pending:
            folder = pending.pop()
            found = self._entries(folder, clock)
            if found is None:
                continue
            dirs, files = found
            yield folder, dirs, files
            if files.changed and folder in self._now:
                self._new += len(self._now[folder][2])
            # Upstream has taken out of `dirs` what it does not want to see.
            pending += [os.path.join(folder, name) for name in reversed(dirs)]
        self._listings.strings = {}
        if saves:
            self._save()

    def _save(self) -> None:
        """Not where next to nothing has changed: upstream writes a few files of its own beside the pictures at each start."""
        known = self._known if self._new or "_known" in vars(self) else {}
        again = {folder: known[folder] for folder in self._again.keys() & known.keys()}
        now = self._now | {folder: kept for folder, kept in again.items() if kept[0] == self._again[folder]}
        gone = sum(len(known[folder][2]) for folder in known.keys() - now.keys())
        if (self._new + gone) * LEAST_CHANGE > sum(len(kept[2]) for kept in now.values()):
            save(self._file, self._key, now)

    def _clock(self) -> int:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
        except OSError:
            return 0
        return clock_of(self._file.parent) or 0

    def _entries(self, folder: str, clock: int) -> tuple[list[str], Files] | None:
        strings = self._listings.strings
        try:
            stat = stat_of(folder)
            listed = self._listings.get(folder)
            if listed is not None and listed.stat == stat:
                self._again[folder] = stat
                return list(listed.dirs), Files(folder, None, {}, listed.paths, strings)
            known = self._known.get(folder)
            if known is None or known[0] != stat:
                dirs, names, links = _look_into(folder)
                # What a link leads to may become something else without a trace in this folder.
                if links or not settled(stat, clock):
                    self._listings.pop(folder, None)
                    return dirs, Files(folder, packed(names), {}, {}, strings)
                known = stat, list(dirs), packed(names), {}
                self._new += len(known[2])
        except OSError:
            return None
        self._now[folder] = known
        listed = self._listings[folder] = Listed(stat, known[1])
        return list(listed.dirs), Files(folder, known[2], known[3], listed.paths, strings)


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
