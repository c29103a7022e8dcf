"""Upstream's own tests on the pristine tree and on the fork, compared test by test: the fork may not lose one."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from ..place import Place
from ..scenario import Failed
from .upstream_cache import Cache, claim_numbers
from .upstream_run import TIMED_OUT, Limits, Results, Runner
from .upstream_trees import Trees, both_trees, mirror

CHUNK = 25
RERUNS = 2
SHOWN = 20


@dataclass(frozen=True)
class TestRunPlan:
    """Which tests run, and how."""

    jobs: int = 2
    chunk: int = CHUNK
    limits: Limits = field(default_factory=Limits)
    # Results older than this moment are not used.
    since: float = 0.0
    keep: bool = False


@dataclass(frozen=True)
class TreeComparison:
    """Of each test that is not the same in both trees: what it did, as `pristine -> fork`."""

    counts: dict[str, int]
    lost: dict[str, str]
    unstable: dict[str, str]
    gained: dict[str, str]
    unfinished: dict[str, str]
    reused: int

    def sentence(self) -> str:
        """As one line."""
        total = sum(self.counts.values())
        parts = [f"{total} tests: " + ", ".join(f"{count} {name}" for name, count in self.counts.items() if count)]
        parts += [f"{len(self.gained)} only pass on the fork"] * bool(self.gained)
        parts += [f"unstable, not counted: {', '.join(self.unstable)}"] * bool(self.unstable)
        parts += ["did not finish: " + ", ".join(f"{k} ({v})" for k, v in self.unfinished.items())] * bool(
            self.unfinished
        )
        parts += [f"{self.reused} results of an earlier run on the same files used"] * bool(self.reused)
        return "; ".join(parts)


class Suite:
    """Runs files in both trees, several at a time, each worker in copies of its own."""

    def __init__(self, place: Place, trees: Trees, plan: TestRunPlan, scratch: Path, locks: ExitStack) -> None:
        self.trees, self.plan, self.work = trees, plan, place.work / "upstream"
        self.cache = Cache(self.work / "results", trees, plan.since)
        self.stop = threading.Event()
        logs = self.work / "logs"
        logs.mkdir(exist_ok=True)
        self.runner = Runner(scratch, logs, plan.limits, self.stop)
        self.results: dict[str, Results] = {name: {} for name, _ in trees.items()}
        self.unfinished: dict[str, str] = {}
        self.reused = 0
        self.free: SimpleQueue[int] = SimpleQueue()
        self.mirrored: set[Path] = set()
        for number in claim_numbers(self.work, plan.jobs, locks):
            self.free.put(number)

    def run(self, files: Sequence[str]) -> None:
        """Run all test files in both trees."""
        tasks = list(self._tasks(files))
        calls = [partial(self._chunk, *task, f"[{at}/{len(tasks)}]") for at, task in enumerate(tasks, 1)]
        self._together(calls)

    def again(self, file: str) -> list[Results]:
        """One file by itself, in the pristine tree and in the fork."""
        return [found for found, _ in self._together([partial(self.alone, tree, [file]) for tree in self.results])]

    def _together[T](self, calls: Sequence[Callable[[], T]]) -> list[T]:
        with ThreadPoolExecutor(self.plan.jobs) as pool:
            waiting = [pool.submit(call) for call in calls]
            try:
                return [future.result() for future in waiting]
            except BaseException:
                # Also at Ctrl-C: the test processes do not see it, and must not outlive this one.
                self.stop.set()
                pool.shutdown(cancel_futures=True)
                raise

    def _tasks(self, files: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
        """Chunk by chunk, both trees in turn, so that an interrupted run has comparable halves."""
        for start in range(0, len(files), self.plan.chunk):
            for tree in self.results:
                chunk = list(files[start : start + self.plan.chunk])
                known = {file: self.cache.load(tree, file) for file in chunk}
                self.results[tree] |= {file: tests for file, tests in known.items() if tests is not None}
                self.reused += sum(tests is not None for tests in known.values())
                left = [file for file, tests in known.items() if tests is None]
                if left:
                    yield tree, left

    def _chunk(self, tree: str, files: list[str], progress: str) -> None:
        started = time.monotonic()
        found, end = self.alone(tree, files)
        ends = dict.fromkeys(files, end)
        if not found and len(files) > 1 and not self.stop.is_set():
            # One file can take a whole process down; then each gets its own.
            for file in files:
                more, ends[file] = self.alone(tree, [file])
                found |= more
        for file in files:
            self._keep(tree, file, found.get(file), ends[file])
        tests = sum(map(len, found.values()))
        said = ", ".join(sorted(set(ends.values())))
        seconds = time.monotonic() - started
        print(
            f"{progress} {tree}: {len(files)} files, {tests} tests, {seconds:.0f} s, {said}",
            file=sys.stderr,
            flush=True,
        )

    def _keep(self, tree: str, file: str, tests: dict[str, str] | None, end: str) -> None:
        if tests is None:
            self.unfinished[f"{file} on the {tree} tree"] = end
            return
        self.results[tree][file] = tests
        late = [test for test, outcome in tests.items() if outcome == TIMED_OUT]
        self.unfinished |= {f"{file}::{test} on the {tree} tree": TIMED_OUT for test in late}
        if not late:
            self.cache.save(tree, file, tests)

    def alone(self, tree: str, files: Sequence[str]) -> tuple[Results, str]:
        """One process for these files: what it found, and how it ended."""
        number = self.free.get()
        try:
            copy = self.work / f"{tree}-{number}"
            if copy not in self.mirrored:
                copy.mkdir(parents=True, exist_ok=True)
                mirror(dict(self.trees.items())[tree], self.trees.pristine, copy)
                self.mirrored.add(copy)
            ran = self.runner.run(copy, files, f"{tree}-{number}")
            return ran.results or {}, ran.end
        finally:
            self.free.put(number)


def compare(place: Place, files: Sequence[str], plan: TestRunPlan, name: str) -> str:
    """One sentence when the fork loses none of the tests in these files; Failed when it does, or when none runs."""
    if not files:
        raise Failed("upstream's tests do not run: no test file of the pristine tree concerns this")
    trees = both_trees(place)
    with ExitStack() as locks:
        scratch = Path(tempfile.mkdtemp(prefix="gh200-"))
        if plan.keep:
            print(f"homes and temporary files of the tests: {scratch}", file=sys.stderr)
        else:
            locks.callback(shutil.rmtree, scratch, ignore_errors=True)
        suite = Suite(place, trees, plan, scratch, locks)
        suite.run(files)
        compared = _compared(suite)
    return _verdict(compared, suite.work / f"{name}.json", len(files))


def _verdict(compared: TreeComparison, details: Path, files: int) -> str:
    details.write_text(json.dumps(vars(compared), indent=2) + "\n", encoding="utf-8")
    if not any(compared.counts[key] for key in ("pass on both", "lost", "unstable")):
        raise Failed(f"upstream's tests do not run: none of {files} files has a test that passes on the pristine tree")
    if compared.lost:
        lines = [f"{test}: {change}" for test, change in compared.lost.items()]
        more = [f"and {len(lines) - SHOWN} more"] * (len(lines) > SHOWN)
        raise Failed(
            f"the fork loses {len(lines)} tests (all in {details}, output in {details.parent / 'logs'}): "
            + "; ".join([*lines[:SHOWN], *more])
        )
    return f"{files} files, the fork loses none; {compared.sentence()}"


def _compared(suite: Suite) -> TreeComparison:
    before, after = suite.results["pristine"], suite.results["fork"]
    suspects = losses(before, after)
    files = sorted({name.partition("::")[0] for name in suspects})
    unstable: dict[str, str] = {}
    for _ in range(RERUNS if suspects else 0):
        for file in files:
            print(f"once more, alone in both trees: {file}", file=sys.stderr, flush=True)
            still = losses(*suite.again(file))
            gone = [name for name in suspects if name.startswith(f"{file}::") and name not in still]
            unstable |= {name: suspects.pop(name) for name in gone}
        files = sorted({name.partition("::")[0] for name in suspects})
    counts = _counts(before, after, set(suspects) | set(unstable))
    counts |= {"lost": len(suspects), "unstable": len(unstable)}
    return TreeComparison(counts, suspects, unstable, losses(after, before), suite.unfinished, suite.reused)


def losses(before: Results, after: Results) -> dict[str, str]:
    """Every test that passed before and does not afterwards, with what it does instead."""
    return {
        f"{file}::{test}": f"passed -> {after.get(file, {}).get(test, 'missing')}"
        for file, tests in before.items()
        for test, outcome in tests.items()
        if outcome == "passed" and after.get(file, {}).get(test) != "passed"
    }


def _counts(before: Results, after: Results, suspects: set[str]) -> dict[str, int]:
    counts = {"pass on both": 0, "skipped": 0, "fail on the pristine tree": 0}
    keys = {"passed": "pass on both", "skipped": "skipped"}
    for file, tests in before.items():
        for test, outcome in tests.items():
            if f"{file}::{test}" not in suspects:
                counts[keys.get(outcome, "fail on the pristine tree")] += 1
    return counts
