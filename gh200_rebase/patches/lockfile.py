"""patches/lock.json: which releases were verified, and what each edit's surroundings looked like there."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path

from packaging.version import InvalidVersion, Version

from ..errors import Rejected

FORMAT = 1
# A page over all releases asks for the same few dozen versions tens of thousands of times.
_version = cache(Version)


@dataclass(frozen=True)
class Entry:
    """Surroundings of one edit, true from release `since` until the next entry."""

    since: str
    status: str
    variant: int = 0
    hits: int = 0
    chain: str = ""
    anchor: str = ""
    neighbours: str = ""
    scope: str = ""
    exits: str = ""
    """Of the statements before it that may leave the scope or the round, with their conditions."""
    body: str = ""
    """Of an upstream function that our code stands for; the other facts are those of an edit."""

    def same_place(self, other: Entry) -> bool:
        """Whether the surroundings are equal, whatever the release."""
        return {**asdict(self), "since": ""} == {**asdict(other), "since": ""}


@dataclass(frozen=True)
class Lock:
    """Verified releases, and the surroundings of each edit in them."""

    releases: Mapping[str, str] = field(default_factory=dict)
    edits: Mapping[str, tuple[Entry, ...]] = field(default_factory=dict)
    accepted: Mapping[str, tuple[Entry, ...]] = field(default_factory=dict)
    """Surroundings of upstreams that are no release; `since` is then the upstream they were seen in."""

    def newest(self) -> str | None:
        """The newest verified release."""
        return max(self.releases, key=Version, default=None)

    def expected(self, edit_key: str, version: str) -> Entry | None:
        """The entry in force at `version`; the oldest one for anything older than all of them."""
        entries = self.edits.get(edit_key, ())
        known = [entry for entry in entries if _version(entry.since) <= _version(version)]
        return known[-1] if known else next(iter(entries), None)

    def reviewed(self, edit_key: str) -> tuple[Entry, ...]:
        """All surroundings of this edit that were ever accepted: those of releases, and of commits and directories."""
        return self.edits.get(edit_key, ()) + self.accepted.get(edit_key, ())


def build(observed: Mapping[str, tuple[str, Mapping[str, Entry]]]) -> Lock:
    """A lock from `{version: (digest, {edit: entry})}`; equal neighbours in time share one entry."""
    edits: dict[str, list[Entry]] = {}
    ordered = sorted(observed, key=Version)
    for version in ordered:
        for key, entry in observed[version][1].items():
            history = edits.setdefault(key, [])
            if not history or not history[-1].same_place(entry):
                history.append(entry)
    releases = {version: observed[version][0] for version in ordered}
    return Lock(releases, {key: tuple(edits[key]) for key in sorted(edits)})


def accept(lock: Lock, found: Mapping[str, Entry]) -> Lock:
    """The lock with surroundings that somebody reviewed in an upstream that is no release."""
    accepted = {key: list(entries) for key, entries in lock.accepted.items()}
    for key, entry in found.items():
        history = accepted.setdefault(key, [])
        if not any(entry.same_place(old) for old in history):
            history.append(entry)
    return replace(lock, accepted={key: tuple(accepted[key]) for key in sorted(accepted)})


def still_accepted(old: Lock, new: Lock) -> Lock:
    """What was accepted stays so, until a release has the very same surroundings or the edit is gone."""
    left = {
        key: tuple(entry for entry in entries if not any(entry.same_place(other) for other in new.edits[key]))
        for key, entries in old.accepted.items()
        if key in new.edits
    }
    return replace(new, accepted={key: entries for key, entries in left.items() if entries})


def load(path: Path) -> Lock:
    """Read the lock; a missing one is empty."""
    if not path.is_file():
        return Lock()
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']!r}, this tool reads {FORMAT}")
        edits = {key: tuple(Entry(**entry) for entry in entries) for key, entries in data["edits"].items()}
        for version in (*data["releases"], *(entry.since for entries in edits.values() for entry in entries)):
            Version(version)
        accepted = {key: tuple(Entry(**entry) for entry in found) for key, found in data.get("accepted", {}).items()}
        return Lock(data["releases"], edits, accepted)
    except (ValueError, TypeError, KeyError, AttributeError, InvalidVersion) as error:
        raise Rejected(
            "The lock cannot be read",
            where=str(path),
            why=str(error),
            fix="restore it with `git checkout -- patches/lock.json`, or make a new one with "
            "`./execute_gh200_rebase.sh lock`",
        ) from error


def save(lock: Lock, path: Path) -> None:
    """One entry per line, so that a review of the lock reads as a list of places where upstream moved."""
    lines = ["{", f' "format": {FORMAT},', ' "releases": {']
    lines += _joined(f"  {json.dumps(version)}: {json.dumps(digest)}" for version, digest in lock.releases.items())
    lines += [" },", ' "edits": {']
    lines += _joined(_edit_block(key, entries) for key, entries in lock.edits.items())
    if lock.accepted:
        lines += [" },", ' "accepted": {']
        lines += _joined(_edit_block(key, entries) for key, entries in lock.accepted.items())
    lines += [" }", "}", ""]
    temporary = path.with_suffix(".tmp")
    temporary.write_text("\n".join(lines), encoding="utf-8")
    temporary.replace(path)


def _edit_block(key: str, entries: Iterable[Entry]) -> str:
    recorded = ({name: value for name, value in asdict(entry).items() if value} for entry in entries)
    rows = _joined(f"   {json.dumps(facts)}" for facts in recorded)
    return "\n".join([f"  {json.dumps(key)}: [", *rows, "  ]"])


def _joined(items: Iterable[str]) -> list[str]:
    texts = list(items)
    return [f"{text}," for text in texts[:-1]] + texts[-1:]
