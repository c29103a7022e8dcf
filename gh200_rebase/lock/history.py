"""The same patches on every commit of upstream's history: what broke or moved, and with which commit."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tqdm import tqdm

from ..errors import EXIT_ANCHOR, EXIT_CLEAN, EXIT_DRIFT
from ..patches.lockfile import Entry, Lock
from ..project import Project
from ..system.durable import leave_signals_to_the_parent, start_workers
from ..upstream.history import Change, CommitTree, Objects
from .drift import INFO, REVIEW, compare
from .findings import Findings, Paths
from .units import Finding, Unit, Units

FAILED, MISPLACED = "failed", "misplaced"
_AHEAD = 4


@dataclass(frozen=True)
class Row:
    """What one commit gave."""

    change: Change
    entries: dict[str, Entry]
    failures: tuple[str, ...]
    violations: tuple[str, ...]
    proofs: tuple[int, int]
    interfaces: tuple[int, int]

    @property
    def good(self) -> bool:
        return not self.failures and not self.violations


@dataclass(frozen=True)
class Move:
    """An edit that a commit changed something for; level as in drift, or failed, misplaced."""

    change: Change
    edit: str
    level: str
    what: str


def run(project: Project, repo: Path, changes: Sequence[Change], jobs: int | None = None, only: str = "") -> list[Row]:
    """Every commit, from findings kept per file content; `only` looks at the unit of one edit."""
    units = Units(project)
    wanted = [units.of_edit(only)] if only else list(units.all.values())
    kept = Findings(project)
    try:
        with Objects(repo) as objects:
            trees = [CommitTree(objects, change.id) for change in changes]
            _find_missing(project, repo, kept, wanted, trees, jobs)
            return [_row(change, kept, wanted, tree) for change, tree in zip(changes, trees, strict=True)]
    finally:
        kept.close()


def _find_missing(
    project: Project, repo: Path, kept: Findings, units: Sequence[Unit], trees: Sequence[CommitTree], jobs: int | None
) -> None:
    """In rounds: what a unit looks at is known only after it ran once, and may differ from commit to commit."""
    with _bar(len(trees), "commit", "looking up") as bar:
        todo = _missing(kept, units, trees, bar)
    if not todo:
        return
    with ProcessPoolExecutor(jobs or os.cpu_count(), initializer=_enter, initargs=(project.root, repo)) as pool:
        start_workers(pool)
        try:
            while todo:
                _round(pool, kept, todo, trees)
                todo = _missing(kept, units, trees)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _missing(
    kept: Findings, units: Sequence[Unit], trees: Sequence[CommitTree], bar: tqdm | None = None
) -> list[tuple[Unit, CommitTree]]:
    """One (unit, commit) for each content that no finding is kept for."""
    todo: dict[tuple[str, ...], tuple[Unit, CommitTree]] = {}
    for tree in trees:
        for unit in units:
            if kept.look_up(unit, tree) is None:
                todo.setdefault((unit.key, *kept.keys(unit, tree.mark)), (unit, tree))
        if bar is not None:
            bar.update()
    return list(todo.values())


def _round(
    pool: ProcessPoolExecutor,
    kept: Findings,
    todo: Sequence[tuple[Unit, CommitTree]],
    trees: Sequence[CommitTree],
) -> None:
    waiting = list(reversed(todo))
    started: dict[Future[tuple[Finding, Paths, Paths]], tuple[Unit, CommitTree]] = {}
    with _bar(len(todo), "finding", f"{len(trees)} commits") as bar:
        while waiting or started:
            while waiting and len(started) < _AHEAD * (os.cpu_count() or 1):
                unit, tree = waiting.pop()
                started[pool.submit(_work, unit.name, tree.commit)] = unit, tree
            for done in wait(started, return_when=FIRST_COMPLETED).done:
                unit, tree = started.pop(done)
                kept.keep(unit, tree, done.result())
                bar.set_postfix_str(tree.commit[:9], refresh=False)
                bar.update()


def _bar(total: int, unit: str, about: str) -> tqdm:
    # A log wants a line now and then, a terminal a bar that moves.
    return tqdm(total=total, unit=unit, desc=about, file=sys.stderr, mininterval=0.2 if sys.stderr.isatty() else 20)


_HERE: dict[str, tuple[Units, Objects]] = {}


def _enter(root: Path, repo: Path) -> None:
    leave_signals_to_the_parent()
    _HERE["worker"] = Units(Project(root)), Objects(repo)


def _work(name: str, commit: str) -> tuple[Finding, Paths, Paths]:
    units, objects = _HERE["worker"]
    return units.all[name].run(CommitTree(objects, commit), units.project.overlay)


def _row(change: Change, kept: Findings, units: Iterable[Unit], tree: CommitTree) -> Row:
    found = [finding for unit in units if (finding := kept.look_up(unit, tree))]

    def total(pairs: Iterable[tuple[int, int]]) -> tuple[int, int]:
        listed = list(pairs)
        return sum(pair[0] for pair in listed), sum(pair[1] for pair in listed)

    return Row(
        change=change,
        entries={key: entry for finding in found for key, entry in finding.entries.items()},
        failures=tuple(text for finding in found for text in finding.failures),
        violations=tuple(text for finding in found for text in finding.violations),
        proofs=total(finding.proofs for finding in found),
        interfaces=total(finding.interfaces for finding in found),
    )


def moves(rows: Sequence[Row]) -> list[Move]:
    """What each commit changed, against its first parent where that is among the rows, else against the one before."""
    known = {row.change.id: row for row in rows}
    found: list[Move] = []
    for index, row in enumerate(rows):
        before = known.get(row.change.parent) or (rows[index - 1] if index else None)
        if before is not None:
            found += _against(before, row)
    return found


def _against(before: Row, row: Row) -> list[Move]:
    found = []
    for what, level in ((row.failures, FAILED), (row.violations, MISPLACED)):
        old = before.failures if level == FAILED else before.violations
        names = {_subject(text) for text in old}
        found += [Move(row.change, _subject(text), level, text) for text in what if _subject(text) not in names]
    for key, entry in row.entries.items():
        difference = compare(before.entries.get(key), entry)
        if difference and entry.status != FAILED:
            found.append(Move(row.change, key, *difference))
    return found


def _subject(text: str) -> str:
    """The edit or the file a sentence is about."""
    return text.split(":")[0].split(" ")[0]


def unreviewed(row: Row, lock: Lock) -> tuple[str, ...]:
    """Edits whose surroundings are not those of any release or commit that was reviewed."""
    return tuple(key for key, entry in row.entries.items() if entry.status != FAILED and not _known(lock, key, entry))


def _known(lock: Lock, key: str, entry: Entry) -> bool:
    return any(_level(old, entry) != REVIEW for old in lock.reviewed(key))


@cache
def _level(old: Entry, new: Entry) -> str:
    difference = compare(old, new)
    return difference[0] if difference else INFO


def exit_code(rows: Sequence[Row], lock: Lock) -> int:
    if any(row.failures for row in rows):
        return EXIT_ANCHOR
    return EXIT_DRIFT if any(row.violations or unreviewed(row, lock) for row in rows) else EXIT_CLEAN
