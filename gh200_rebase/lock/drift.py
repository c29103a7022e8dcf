"""Drift: how far an edit's surroundings in this upstream differ from what was last reviewed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ..engine.resolve import EditResult
from ..patches.lockfile import Entry, Lock
from ..patches.verbs import IMPORT

REVIEW, WARNING, INFO = "review", "warning", "info"

# What a change of each recorded fact means: only the first group can put an edit in the wrong place.
_LEVELS = (
    ("status", REVIEW, "the edit was {old}, now it is {new}"),
    ("variant", REVIEW, "another form of the edit matched ({old} -> {new})"),
    ("hits", REVIEW, "the anchor hit {old} places, now {new}"),
    ("chain", REVIEW, "the blocks that enclose the anchor changed"),
    ("anchor", REVIEW, "the anchored statement itself changed"),
    ("neighbours", WARNING, "a statement next to the anchor changed"),
    ("scope", INFO, "something else in the same scope changed"),
)


@dataclass(frozen=True)
class Drift:
    edit_key: str
    level: str
    what: str
    file: str
    line: int


def observe(version: str, results: Sequence[EditResult]) -> dict[str, Entry]:
    """What a release shows of each edit. An import lands after whatever imports there are: nothing of it can drift."""
    return {result.edit.key: _entry(version, result) for result in results if result.form.verb != IMPORT}


def _entry(version: str, result: EditResult) -> Entry:
    if result.fingerprint is None:
        return Entry(since=version, status=result.status)
    return Entry(since=version, status=result.status, variant=result.variant, **asdict(result.fingerprint))


def compare(expected: Entry | None, found: Entry) -> tuple[str, str] | None:
    """The most serious difference as (level, sentence), or None."""
    if expected is None:
        return REVIEW, "this edit is not in the lock yet"
    for name, level, sentence in _LEVELS:
        old, new = getattr(expected, name), getattr(found, name)
        if old != new:
            return level, sentence.format(old=old, new=new)
    return None


def find_drift(lock: Lock, version: str, results: Sequence[EditResult]) -> tuple[Drift, ...]:
    drifts = []
    seen = observe(version, [result for result in results if result.status != "failed"])
    for result in results:
        entry = seen.get(result.edit.key)
        difference = _since(lock, version, entry, result.edit.key) if entry else None
        if difference:
            hit = result.hits[0] if result.hits else None
            drifts.append(Drift(result.edit.key, *difference, file=result.form.file, line=hit.line if hit else 0))
    return tuple(drifts)


def _since(lock: Lock, version: str, entry: Entry, key: str) -> tuple[str, str] | None:
    """The difference to the release in force, unless somebody has accepted these very surroundings elsewhere."""
    difference = compare(lock.expected(key, version), entry)
    if difference and difference[0] == REVIEW:
        for known in lock.accepted.get(key, ()):
            other = compare(known, entry)
            if other is None or other[0] != REVIEW:
                return INFO, f"{difference[1]}, as accepted in {known.since}"
    return difference


def reviewed_moves(lock: Lock, version: str) -> tuple[str, ...]:
    """What the lock says moved exactly at this release, and a maintainer has accepted."""
    moves = []
    for key, entries in lock.edits.items():
        for before, after in itertools.pairwise(entries):
            difference = compare(before, after)
            if after.since == version and difference and difference[0] == REVIEW:
                moves.append(f"{key}: {difference[1]}")
    return tuple(moves)
