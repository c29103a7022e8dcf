"""What upstream's commits did to our edits: a table of what moved, a file of all commits."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..lock.drift import INFO, REVIEW, WARNING, compare
from ..lock.history import FAILED, MISPLACED, Move, Row, exit_code, unreviewed
from ..patches.lockfile import Lock
from ..patches.patchmodel import Edit
from ..system.durable import write_atomic
from ..text import table

_SHOWN = (REVIEW, MISPLACED, FAILED)


def render(rows: Sequence[Row], moves: Sequence[Move], lock: Lock) -> str:
    """The commits that changed where or how an edit lands, and the sum of all of them."""
    lines = [
        (move.change.id[:12], move.change.date, move.change.author, move.edit, move.level, _short(move.what))
        for move in moves
        if move.level in _SHOWN
    ]
    parts = [table(("commit", "date", "author", "edit", "level", "what"), lines)] if lines else []
    broken = [row for row in rows if not row.good]
    for row in broken:
        parts += [f"{'FAILED' if row.failures else 'MISPLACED'} {row.change}"]
        parts += [f"  {_short(text)}" for text in (*row.failures, *row.violations)[:3]]
    open_places = [(row.change, unreviewed(row, lock)) for row in rows]
    for stretch, keys in _stretches(open_places):
        parts.append(f"TO REVIEW {', '.join(keys)}: {stretch}")
    count = Counter(move.level for move in moves)
    parts += [
        "",
        f"{len(rows)} commits, {rows[0].change.date} to {rows[-1].change.date}: "
        f"{len(rows) - len(broken)} apply with all proofs, {len(broken)} do not; "
        f"{sum(not keys for _, keys in open_places)} have only surroundings that were reviewed",
        f"moves: {count[REVIEW]} of an anchor or what encloses it, {count[WARNING]} of a neighbour, "
        f"{count[INFO]} elsewhere in the scope",
    ]
    return "\n".join(parts)


def _stretches(found: Sequence[tuple[Any, tuple[str, ...]]]) -> list[tuple[str, tuple[str, ...]]]:
    """Neighbouring commits with the same open places, as one."""
    out: list[tuple[list[Any], tuple[str, ...]]] = []
    for change, keys in found:
        if out and out[-1][1] == keys:
            out[-1][0].append(change)
        else:
            out.append(([change], keys))
    return [(f"{len(held)} commit(s) since {held[0]}", keys) for held, keys in out if keys]


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 110 else line[:107] + "..."


def blame(edit: Edit, rows: Sequence[Row], moves: Sequence[Move], show_all: bool) -> str:
    """Which commits touched one edit's place, newest last."""
    shown = [move for move in moves if show_all or move.level != INFO]
    lines = [
        (move.change.id[:12], move.change.date, move.change.author, move.level, _short(move.what), move.change.subject)
        for move in shown
    ]
    parts = [f"{edit.key}: {edit.verb} in {edit.scope or 'module'} of {edit.file}", ""]
    parts.append(
        table(("commit", "date", "author", "level", "what", "subject"), lines)
        if lines
        else "no commit touched its place"
    )
    hidden = len(moves) - len(shown)
    now = [text for text in rows[-1].failures if text.startswith(f"{edit.key}:")]
    parts += [
        "",
        f"{len(rows)} commits looked at" + (f"; {hidden} changed only other parts of its scope (--all)" * bool(hidden)),
    ]
    broke = next((move for move in reversed(moves) if move.level == FAILED), None)
    if now:
        parts.append(f"BROKEN since {broke.change if broke else rows[0].change}\n  {now[0]}")
    return "\n".join(parts)


def blame_releases(edit: Edit, lock: Lock) -> str:
    """The same from the lock alone: release by release, without a repository."""
    entries = lock.edits.get(edit.key, ())
    lines = []
    for before, after in pairwise(entries):
        difference = compare(before, after)
        if difference and difference[0] != INFO:
            lines.append((after.since, *difference))
    parts = [f"{edit.key}: {edit.verb} in {edit.scope or 'module'} of {edit.file}", ""]
    parts.append(table(("release", "level", "what"), lines) if lines else "its place is the same in every release")
    return "\n".join([*parts, "", "--git REPO names the commits"])


def move_as_json(move: Move) -> dict[str, str]:
    return {"commit": move.change.id, "edit": move.edit, "level": move.level, "what": move.what} | {
        "author": move.change.author,
        "date": move.change.date,
        "subject": move.change.subject,
    }


def as_json(rows: Sequence[Row], moves: Sequence[Move], lock: Lock) -> dict[str, object]:
    return {
        "exit_code": exit_code(rows, lock),
        "commits": [
            {
                **vars(row.change),
                "failures": row.failures,
                "violations": row.violations,
                "proofs": row.proofs,
                "interfaces": row.interfaces,
                "to_review": unreviewed(row, lock),
            }
            for row in rows
        ],
        "moves": [move_as_json(move) for move in moves],
    }


def write(rows: Sequence[Row], lock: Lock, folder: Path) -> Path:
    """All commits as a table a program can read."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(
        ("commit", "date", "author", "subject", "verdict", "applied", "skipped", "proofs", "interfaces", "to review")
    )
    for row in rows:
        states = [entry.status for entry in row.entries.values()]
        verdict = "failed" if row.failures else "misplaced" if row.violations else "ok"
        facts = (states.count("applied"), states.count("skipped"), row.proofs[0], row.interfaces[0])
        change = row.change
        writer.writerow(
            (change.id, change.date, change.author, change.subject, verdict, *facts, " ".join(unreviewed(row, lock)))
        )
    target = folder / "commits.csv"
    write_atomic(target, out.getvalue().encode())
    return target
