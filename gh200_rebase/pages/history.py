"""What upstream's commits did to our edits: a table, a page of all commits, a plot of what moved when."""

from __future__ import annotations

import csv
import html
import io
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

_COLOURS = {INFO: "#c9ced6", WARNING: "#e8b339", REVIEW: "#2f6fde", MISPLACED: "#8e44ad", FAILED: "#d33a2c"}
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
    count = {level: sum(move.level == level for move in moves) for level in _COLOURS}
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


def write(rows: Sequence[Row], moves: Sequence[Move], lock: Lock, folder: Path) -> list[Path]:
    """All commits as a table a program can read, and the plot."""
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
    targets = [folder / "commits.csv", folder / "commits.svg"]
    for target, text in zip(targets, (out.getvalue(), plot(rows, moves)), strict=True):
        write_atomic(target, text.encode())
    return targets


def plot(rows: Sequence[Row], moves: Sequence[Move]) -> str:
    """Commits from left to right, an edit per line, a mark where it moved; worse marks are drawn over better ones."""
    edits = sorted({key for row in rows for key in row.entries} | {move.edit for move in moves})
    left, top, step, width = 190, 40, 18, 1100
    height = top + step * len(edits) + 60
    at = {row.change.id: left + width * index / max(len(rows) - 1, 1) for index, row in enumerate(rows)}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 20}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{left}" y="20" font-size="14">What {len(rows)} commits moved, edit by edit</text>',
    ]
    for index, key in enumerate(edits):
        y = top + step * index
        parts.append(f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{html.escape(key)}</text>')
        parts.append(f'<line x1="{left}" x2="{left + width}" y1="{y}" y2="{y}" stroke="#eee"/>')
    for move in sorted(moves, key=lambda move: list(_COLOURS).index(move.level)):
        x, y = at[move.change.id], top + step * edits.index(move.edit)
        size = 2 if move.level == INFO else 4
        told = html.escape(f"{move.edit}: {move.what}\n{move.change}")
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y}" r="{size}" fill="{_COLOURS[move.level]}"><title>{told}</title></circle>'
        )
    parts += [*_months(rows, at, top, height - 50), *_legend(left, height - 15), "</svg>\n"]
    return "\n".join(parts)


def _months(rows: Sequence[Row], at: dict[str, float], top: int, bottom: int) -> list[str]:
    parts, last = [], ""
    for row in rows:
        month = row.change.date[:7]
        if month > last:
            x, last = at[row.change.id], month
            parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top - 8}" y2="{bottom}" stroke="#ddd"/>')
            parts.append(f'<text x="{x:.1f}" y="{bottom + 14}">{month}</text>')
    return parts


def _legend(left: int, y: int) -> list[str]:
    words = {
        INFO: "elsewhere in the scope",
        WARNING: "a neighbour",
        REVIEW: "the anchor or what encloses it",
        MISPLACED: "a contract broke",
        FAILED: "no place found",
    }
    parts = []
    for index, (level, word) in enumerate(words.items()):
        x = left + 210 * index
        parts.append(
            f'<circle cx="{x}" cy="{y - 4}" r="4" fill="{_COLOURS[level]}"/><text x="{x + 8}" y="{y}">{word}</text>'
        )
    return parts
