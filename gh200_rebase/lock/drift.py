"""Drift: how far an edit's surroundings in this upstream differ from what was last reviewed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ..engine.resolve import EditResult
from ..patches.lockfile import Entry, Lock
from ..patches.verbs import IMPORT
from ..proofs.bodies import Body

REVIEW, WARNING, INFO = "review", "warning", "info"
FOUND, MISSING = "found", "missing"

# What a change of each recorded fact means: only the first group can put an edit in the wrong place.
_LEVELS = (
    ("status", REVIEW, "it was {old}, now it is {new}"),
    ("variant", REVIEW, "another form of the edit matched ({old} -> {new})"),
    ("hits", REVIEW, "the anchor hit {old} places, now {new}"),
    ("chain", REVIEW, "the blocks that enclose the anchor changed"),
    ("anchor", REVIEW, "the anchored statement itself changed"),
    ("exits", REVIEW, "a return, break or continue before it, or the condition of one, changed"),
    ("body", REVIEW, "this function, or something of its file that it uses, changed"),
    ("neighbours", WARNING, "a statement next to the anchor changed"),
    ("scope", INFO, "something else in the same scope changed"),
)


@dataclass(frozen=True)
class Drift:
    """One difference to the lock, with its level and place."""

    edit_key: str
    level: str
    what: str
    file: str
    line: int


def observe(version: str, results: Sequence[EditResult], bodies: Sequence[Body] = ()) -> dict[str, Entry]:
    """What a release shows of each edit, and of each function that ours stand for.

    An import lands after whatever imports there are: nothing of it can drift.
    """
    edits = {result.edit.key: _entry(version, result) for result in results if result.form.verb != IMPORT}
    found = {body.key: body for body in bodies if not body.problem}
    return edits | {
        key: Entry(version, MISSING if body.is_missing else FOUND, body=body.digest) for key, body in found.items()
    }


def _entry(version: str, result: EditResult) -> Entry:
    if result.fingerprint is None:
        return Entry(since=version, status=result.status)
    return Entry(since=version, status=result.status, variant=result.variant, **asdict(result.fingerprint))


def compare(expected: Entry | None, found: Entry) -> tuple[str, str] | None:
    """The most serious difference as (level, sentence), or None."""
    if expected is None:
        return REVIEW, "not in the lock yet"
    for name, level, sentence in _LEVELS:
        old, new = getattr(expected, name), getattr(found, name)
        if old != new:
            return level, sentence.format(old=old, new=new)
    return None


def find_drift(
    lock: Lock, version: str, results: Sequence[EditResult], bodies: Sequence[Body] = ()
) -> tuple[Drift, ...]:
    """Every difference of an upstream to the lock."""
    drifts = []
    seen = observe(version, [result for result in results if result.status != "failed"], bodies)
    for result in results:
        entry = seen.get(result.edit.key)
        difference = _since(lock, version, entry, result.edit.key) if entry else None
        if difference:
            hit = result.hits[0] if result.hits else None
            drifts.append(Drift(result.edit.key, *difference, file=result.form.file, line=hit.line if hit else 0))
    for body in bodies:
        entry = seen.get(body.key)
        difference = _since(lock, version, entry, body.key) if entry else None
        if difference:
            what = f"{difference[1]}; ours: {body.ours}"
            drifts.append(Drift(body.key, difference[0], what, body.file, body.line))
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
