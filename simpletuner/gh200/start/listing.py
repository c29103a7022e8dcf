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
from .held import FolderFiles
from .record import Stat, clock_of, load, save, settled, stat_of
from .text import packed, unpacked

FOLDER = "gh200_start"
# A record is written anew when a hundredth of it has changed.
LEAST_CHANGE = 100

Extensions = tuple[str, ...] | None
Kept = tuple[Stat, list[str], bytes, dict[Extensions, bytes]]
# By folder in the order of the walk, and whether no folder of it is missing.
Record = tuple[dict[str, Kept], bool]


@dataclass
class Listed:
    """A folder that this run has listed: the same paths again, not equal ones, as long as it has not changed."""

    stat: Stat
    dirs: list[str]
    paths: dict[tuple[str, Extensions], list[str]] = field(default_factory=dict)


class Listings(dict[str, Listed]):
    """By folder, as upstream names it; `records`, for the next listing to use."""

    def __init__(self, _: object) -> None:
        super().__init__()
        self.records: dict[Path, Record] = {}


@dataclass
class Files:
    """What upstream gets in the place of a folder's files: their names, and those of them that are known to match.

    Without names the run has listed the folder before, and is likely to ask for the same."""

    folder: str
    names: bytes | None
    matches: dict[Extensions, bytes]
    paths: dict[tuple[str, Extensions], list[str]]
    changed: bool = False

    def matching(self, extensions: Extensions) -> bytes:
        found = self.matches.get(extensions)
        if found is None:
            try:
                names = packed(_look_into(self.folder)[1]) if self.names is None else self.names
            except OSError:
                # Gone since it was found: `os.walk` leaves it out.
                return b""
            found = names
            if extensions:
                found = packed(n for part in unpacked(names) for n in part if n.lower().endswith(extensions))
            # One object is written once.
            self.matches[extensions] = names if found == names else found
            self.changed = True
        return found


def files_to_match(files: Files, extensions: Extensions, root: str, matching: list[str]) -> Iterable[str]:
    """None is left for upstream: those of these extensions are in `matching`, as it would have put them there."""
    extensions = _in_order(extensions)
    found = files.paths.get((root, extensions))
    if found is None:
        start = os.path.join(root, "")
        found = []
        for part in unpacked(files.matching(extensions)):
            found += [start + name for name in part]
        files.paths[root, extensions] = found
    matching += found
    return ()


def _in_order(extensions: Extensions) -> Extensions:
    """Upstream keeps them in a set, so their order is another in every process."""
    return tuple(sorted(extensions)) if extensions else None


def walked(backend: Any, top: Any) -> Iterator[tuple[str, list[str], Files]] | None:
    """As `os.walk` with links followed; None: not ours."""
    walk = _walk(top)
    return None if walk is None else walk.folders(getattr(backend.accelerator, "is_local_main_process", True))


def listed(backend: Any, top: Any, extensions: Extensions) -> list[tuple[str, list[str], FolderFiles]] | None:
    """What upstream lists below a folder, if it goes through the folders of its last walk; no path of it is made yet."""
    walk, saves = _walk(top), getattr(backend.accelerator, "is_local_main_process", True)
    return None if walk is None else walk.whole(_in_order(extensions), saves)


def _walk(top: Any) -> _Walk | None:
    output, run = getattr(StateTracker.get_args(), "output_dir", None), current()
    if not output or run is None or not isinstance(top, str | os.PathLike):
        return None
    return _Walk(Path(output) / FOLDER, os.fspath(top), run.part(Listings))


class _Walk:
    def __init__(self, kept: Path, top: str, listings: Listings) -> None:
        self._top, self._key, self._listings = top, os.path.abspath(top), listings
        name = blake2b(self._key.encode(errors="surrogateescape"), digest_size=12).hexdigest()
        self._file = kept / f"listing-{name}-{os.geteuid()}.gh200"
        self._now: dict[str, Kept] = {}
        self._again: dict[str, Stat] = {}
        self._visited: list[str] = []
        # Bytes of names that the record lacks.
        self._new = 0

    @cached_property
    def _known(self) -> dict[str, Kept]:
        return self._record[0]

    @cached_property
    def _record(self) -> Record:
        kept: Record | None = self._listings.records.pop(self._file, None) or load(self._file, self._key)
        return kept or ({}, False)

    def whole(self, extensions: Extensions, saves: bool) -> list[tuple[str, list[str], FolderFiles]] | None:
        """None where it is for upstream to say which folders it goes through."""
        known, nothing_missing = self._record
        # A walk of the folders takes it from there, or the next listing.
        self._listings.records[self._file] = self._record
        # By the same name, too: all paths begin with it.
        if not nothing_missing or next(iter(known), None) != self._top:
            return None
        clock, found = self._clock(), list[tuple[str, list[str], FolderFiles]]()
        for folder, before in known.items():
            try:
                kept, links = self._look_at(folder, clock)
            except OSError:
                return None
            if links or kept[1] != before[1]:
                return None
            files = Files(folder, kept[2], kept[3], {})
            names = files.matching(extensions)
            self._visited.append(folder)
            self._new += len(kept[2]) if files.changed and folder in self._now else 0
            if names:
                found.append((folder, [], FolderFiles(folder, names)))
        if saves and len(self._now) == len(known):
            self._save()
        return found

    def folders(self, saves: bool) -> Iterator[tuple[str, list[str], Files]]:
        clock = self._clock()
        pending = [self._top]
        while pending:
            folder = pending.pop()
            self._visited.append(folder)
            found = self._entries(folder, clock)
            if found is None:
                continue
            dirs, files = found
            yield folder, dirs, files
            if files.changed and folder in self._now:
                self._new += len(self._now[folder][2])
            # Upstream has taken out of `dirs` what it does not want to see.
            pending += [os.path.join(folder, name) for name in reversed(dirs)]
        if saves:
            self._save()

    def _save(self) -> None:
        """Not where next to nothing has changed: upstream writes a few files of its own beside the pictures at each start."""
        known = self._known if self._new or "_known" in vars(self) else {}
        again = {folder: known[folder] for folder in self._again.keys() & known.keys()}
        now = self._now | {folder: kept for folder, kept in again.items() if kept[0] == self._again[folder]}
        gone = sum(len(known[folder][2]) for folder in known.keys() - now.keys())
        if (self._new + gone) * LEAST_CHANGE > sum(len(kept[2]) for kept in now.values()):
            in_order = {folder: now[folder] for folder in self._visited if folder in now}
            save(self._file, self._key, (in_order, len(in_order) == len(self._visited)))

    def _clock(self) -> int:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
        except OSError:
            return 0
        return clock_of(self._file.parent) or 0

    def _entries(self, folder: str, clock: int) -> tuple[list[str], Files] | None:
        try:
            listed = self._listings.get(folder)
            if listed is not None and listed.stat == stat_of(folder):
                self._again[folder] = listed.stat
                return list(listed.dirs), Files(folder, None, {}, listed.paths)
            (stat, dirs, names, matches), _ = self._look_at(folder, clock)
        except OSError:
            return None
        self._listings.pop(folder, None)
        if folder not in self._now:
            return dirs, Files(folder, names, {}, {})
        listed = self._listings[folder] = Listed(stat, dirs)
        return list(dirs), Files(folder, names, matches, listed.paths)

    def _look_at(self, folder: str, clock: int) -> tuple[Kept, bool]:
        """What is in it, from the record if its times are the same, and whether links are among it. To be kept if it can be
        believed as long as the times are these."""
        stat = stat_of(folder)
        known = self._known.get(folder)
        if known is not None and known[0] == stat:
            self._now[folder] = known
            return known, False
        dirs, names, links = _look_into(folder)
        kept: Kept = stat, dirs, packed(names), {}
        # What a link leads to may become something else without a trace in this folder.
        if not links and settled(stat, clock):
            self._now[folder] = kept
            self._new += len(kept[2])
        return kept, links


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
