"""The same patches on every release: assessed in parallel, cached, compared with the lock."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path

from packaging.version import Version
from tqdm import tqdm

from ..errors import EXIT_ANCHOR, EXIT_CLEAN, EXIT_DRIFT, RebaseError
from ..patches.lockfile import Entry, Lock
from ..project import Project
from ..syntax.tree import MemoryTree
from ..system.durable import leave_signals_to_the_parent, start_workers
from ..text import table
from ..upstream.archive import read_members
from .assess import assess
from .drift import REVIEW, compare, observe, reviewed_moves


@dataclass(frozen=True)
class Row:
    """What one release gave; everything that does not depend on the lock, so that it can be cached."""

    version: str
    digest: str
    entries: dict[str, Entry]
    failures: tuple[str, ...]
    proofs: tuple[int, int]
    interfaces: tuple[int, int]
    cpu_seconds: float
    violations: tuple[str, ...] = ()
    ours: dict[str, str] = field(default_factory=dict)
    """What of ours stands for an upstream function, by the function's key."""

    def unreviewed(self, lock: Lock) -> tuple[str, ...]:
        """Differences to the lock that need a review."""
        found = []
        for key, entry in self.entries.items():
            difference = compare(lock.expected(key, self.version), entry)
            if difference and difference[0] == REVIEW:
                ours = f"; ours: {self.ours[key]}" if key in self.ours else ""
                found.append(f"{key}: {difference[1]}{ours}")
        return tuple(found)


def run(project: Project, releases: Sequence[tuple[str, Path, str]], jobs: int | None = None) -> list[Row]:
    """Assess `(version, archive, digest)` triples; finished ones come from the cache."""
    project.build.joinpath("matrix").mkdir(parents=True, exist_ok=True)
    rows = {version: _cached(project, version, digest) for version, _, digest in releases}
    todo = [release for release in releases if rows[release[0]] is None]
    with (
        ProcessPoolExecutor(jobs or os.cpu_count(), initializer=leave_signals_to_the_parent) as pool,
        tqdm(total=len(releases), initial=len(releases) - len(todo), unit="release", file=sys.stderr) as bar,
    ):
        start_workers(pool)
        started = {pool.submit(_assess_release, project.root, *release): release[0] for release in todo}
        try:
            for done in as_completed(started):
                rows[started[done]] = row = done.result()
                _store(project, row)
                bar.set_postfix_str(row.version)
                bar.update()
        except BaseException:
            # Preemption the pool would wait for all that was handed in.
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return sorted((row for row in rows.values() if row), key=lambda row: Version(row.version))


def _assess_release(root: Path, version: str, archive: Path, digest: str) -> Row:
    project = Project(root)
    started = time.process_time()
    try:
        result = assess(project, MemoryTree(read_members(archive)), f"pypi {version}", version)
    except RebaseError as error:
        return Row(version, digest, {}, (error.render(),), (0, 0), (0, 0), time.process_time() - started)
    return Row(
        version=version,
        digest=digest,
        entries=observe(version, result.plan.results, result.bodies),
        failures=result.failures,
        proofs=(sum(proof.ok for proof in result.proofs), len(result.proofs)),
        interfaces=(sum(item.ok for item in result.interfaces), len(result.interfaces)),
        cpu_seconds=round(time.process_time() - started, 2),
        violations=tuple(f"{v.edit_key} ({v.file}:{v.line}): {v.what}" for v in result.violations),
        ours={body.key: body.ours for body in result.bodies},
    )


def _cache_file(project: Project, version: str) -> Path:
    return project.build / "matrix" / f"{version}.json"


def _cache_key(project: Project, digest: str) -> str:
    return f"{digest} {project.digest} {sys.version_info[:2]}"


def _cached(project: Project, version: str, digest: str) -> Row | None:
    try:
        data = json.loads(_cache_file(project, version).read_text(encoding="utf-8"))
        if data.pop("key") != _cache_key(project, digest):
            return None
        data["entries"] = {key: Entry(**entry) for key, entry in data["entries"].items()}
        for name in ("failures", "proofs", "interfaces", "violations"):
            data[name] = tuple(data[name])
        return Row(**data)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _store(project: Project, row: Row) -> None:
    target = _cache_file(project, row.version)
    temporary = target.with_suffix(".tmp")
    temporary.write_text(json.dumps({"key": _cache_key(project, row.digest), **asdict(row)}), encoding="utf-8")
    temporary.replace(target)


def exit_code(rows: Sequence[Row], lock: Lock) -> int:
    """The exit code of `matrix`."""
    if any(row.failures for row in rows):
        return EXIT_ANCHOR
    return EXIT_DRIFT if any(row.violations or row.unreviewed(lock) for row in rows) else EXIT_CLEAN


def render(rows: Sequence[Row], lock: Lock) -> str:
    """The table of releases, and notes below it."""
    lines = []
    for row in rows:
        states = [entry.status for entry in row.entries.values()]
        variants = sum(entry.variant > 0 for entry in row.entries.values())
        unreviewed = row.unreviewed(lock)
        verdict = f"DRIFT ({len(unreviewed)} to review)" if unreviewed else "ok"
        verdict = f"MISPLACED ({len(row.violations)})" if row.violations else verdict
        verdict = "FAILED" if row.failures else verdict
        lines.append(
            (
                row.version,
                states.count("applied"),
                states.count("skipped"),
                variants,
                "{} of {}".format(*row.proofs),
                "{} of {}".format(*row.interfaces),
                len(reviewed_moves(lock, row.version)),
                f"{row.cpu_seconds:.1f}",
                verdict,
            )
        )
    header = ("release", "applied", "skipped", "variants", "proofs", "interfaces", "moves reviewed", "cpu s", "verdict")
    return "\n".join([table(header, lines), *_notes(rows, lock)])


def _notes(rows: Sequence[Row], lock: Lock) -> list[str]:
    notes = []
    for row in rows:
        notes += [f"{row.version}: reviewed: {move}" for move in reviewed_moves(lock, row.version)]
        notes += [f"{row.version}: TO REVIEW: {move}" for move in row.unreviewed(lock)]
        notes += [f"{row.version}: MISPLACED: {violation}" for violation in row.violations]
        notes += [f"{row.version}: FAILED: {failure}" for failure in row.failures]
    good = sum(not row.failures and not row.violations for row in rows)
    skips = sorted({key for row in rows for key, entry in row.entries.items() if entry.status == "skipped"})
    notes += [f"skipped where its scope does not exist: {key}" for key in skips]
    return ["", *notes, f"{good} of {len(rows)} releases apply with all proofs"]


def as_json(rows: Sequence[Row], lock: Lock) -> dict[str, object]:
    """The facts that --json writes."""
    return {
        "exit_code": exit_code(rows, lock),
        "releases": [
            {**asdict(row), "reviewed": reviewed_moves(lock, row.version), "to_review": row.unreviewed(lock)}
            for row in rows
        ],
    }
