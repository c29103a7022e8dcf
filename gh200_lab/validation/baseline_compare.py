"""Whether a run was slower than an earlier one: worse, same, better or inconclusive, by an interval, not a point."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMAT = 1
LINE = 0.05
SEGMENTS = 10
MEMORY = {"GPU memory": "peak_gpu_bytes", "RAM": "peak_resident_bytes"}
MEMORY_SLACK = 64 << 20
# Student's t for 95 % with one degree of freedom less than there are segments.
QUANTILE = 2.262
WORSE, SAME, BETTER, INCONCLUSIVE = "worse", "same", "better", "inconclusive"
Record = dict[str, Any]
# What two runs must share for their times to be about the same thing.
MUST_MATCH = {
    "features": ("features",),
    "config": ("config",),
    "processor": ("machine", "cpu"),
    "CPUs": ("machine", "cpus"),
    "RAM in GiB": ("machine", "ram_gib"),
    "GPUs": ("machine", "gpus"),
    "upstream": ("versions", "upstream"),
    "torch": ("versions", "torch"),
    "Python": ("versions", "python"),
    "Accelerate": ("versions", "accelerate"),
    "driver": ("versions", "driver"),
}


class BadBaseline(Exception):
    """The baseline to compare with cannot be used; the text says why."""


@dataclass(frozen=True)
class Memory:
    """One kind of memory, by its peak; None where a run had no such thing."""

    name: str
    verdict: str
    before: int | None
    after: int | None

    def sentence(self) -> str:
        """As one line."""
        if self.before is None or self.after is None:
            return f"{self.name}: not compared, {'neither run' if self.before == self.after else 'one run'} had a GPU"
        change = self.after / max(self.before, 1) - 1
        sizes = f"{self.before / 2**20:.0f} MiB then, {self.after / 2**20:.0f} MiB now"
        return f"{self.name}: {self.verdict}, changed by {change:+.1%} ({sizes}); the line is {LINE:+.0%}"


@dataclass(frozen=True)
class Comparison:
    """`low` and `high` bound the change in time per sample: 0.10 is ten percent slower."""

    verdict: str
    change: float
    low: float
    high: float
    warnings: tuple[str, ...]
    memory: tuple[Memory, ...] = ()

    @property
    def worse(self) -> bool:
        """Whether anything is worse."""
        return WORSE in (self.verdict, *(part.verdict for part in self.memory))

    def sentence(self) -> str:
        """As one line."""
        return (
            f"{self.verdict}: time per sample changed by {self.change:+.1%}, "
            f"between {self.low:+.1%} and {self.high:+.1%}; the line is {LINE:+.0%}"
        )


def read_baseline(path: Path) -> Record:
    """A directory or its baseline.json; rejected with everything that is wrong with it."""
    file = path / "baseline.json" if path.is_dir() else path
    if not file.is_file():
        raise BadBaseline(f"{file} does not exist")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise BadBaseline(f"{file} cannot be read: {problem}") from None
    problems = _problems(found)
    if problems:
        raise BadBaseline(f"{file} is damaged: {'; '.join(problems)}")
    record: Record = found
    return record


def _problems(found: Any) -> list[str]:
    if not isinstance(found, dict):
        return ["it is not a JSON object"]
    if found.get("format") != FORMAT:
        return [f"its format is {found.get('format')!r}, this script knows {FORMAT}"]
    problems = [f"{key} is missing" for key in ("features", "machine", "versions") if not found.get(key)]
    times = found.get("seconds_per_sample")
    if not isinstance(times, list) or len(times) < SEGMENTS:
        problems.append(f"seconds_per_sample is no list of at least {SEGMENTS} times")
    elif not all(isinstance(one, (int, float)) and math.isfinite(one) and one > 0 for one in times):
        problems.append("seconds_per_sample has entries that are no times")
    other = found.get("other_work")
    if not isinstance(other, (int, float)) or not 0 <= other < 1:
        problems.append("other_work is no share between 0 and 1")
    return problems


def compare(old: Record, new: Record) -> Comparison:
    """The ratio of typical times, with the spread between the segments of both runs and the work of others as doubt.

    A segment's time is the median of its steps, so single hiccups do not count. A drift from the first half of a run
    to the second counts in full: which half was the typical one is not known. If others had a share of the machine,
    that share may have been taken from the run: it widens the interval on the side on which that run would look too
    slow.
    """
    before, after = _segments(old["seconds_per_sample"]), _segments(new["seconds_per_sample"])
    middle = statistics.mean(after) - statistics.mean(before)
    noise = QUANTILE * math.sqrt((statistics.variance(before) + statistics.variance(after)) / SEGMENTS)
    spread = math.hypot(noise, _drift(before), _drift(after))
    low = math.exp(middle - spread) * (1 - new["other_work"]) - 1
    high = math.exp(middle + spread) / (1 - old["other_work"]) - 1
    memory = tuple(_memory(name, old.get(key), new.get(key)) for name, key in MEMORY.items())
    return Comparison(_verdict(low, high), math.exp(middle) - 1, low, high, tuple(_warnings(old, new)), memory)


def _memory(name: str, before: int | None, after: int | None) -> Memory:
    """Peaks have no spread to judge by; what a process holds by chance is below the slack."""
    if not before or not after:
        return Memory(name, INCONCLUSIVE, before, after)
    change = after - before
    if abs(change) <= max(LINE * before, MEMORY_SLACK):
        return Memory(name, SAME, before, after)
    return Memory(name, WORSE if change > 0 else BETTER, before, after)


def _verdict(low: float, high: float) -> str:
    if low > LINE:
        return WORSE
    if high > LINE:
        return INCONCLUSIVE
    return BETTER if high < -LINE else SAME


def _segments(times: list[float]) -> list[float]:
    """Logarithms of the median time of each tenth of the run, in order."""
    edges = [len(times) * number // SEGMENTS for number in range(SEGMENTS + 1)]
    return [math.log(statistics.median(times[low:high])) for low, high in itertools.pairwise(edges)]


def _drift(segments: list[float]) -> float:
    half = len(segments) // 2
    return statistics.mean(segments[half:]) - statistics.mean(segments[:half])


def _warnings(old: Record, new: Record) -> list[str]:
    found = []
    for name, keys in MUST_MATCH.items():
        before, after = _at(old, keys), _at(new, keys)
        if before != after:
            found.append(f"not the same {name}: {after!r} now, {before!r} in the baseline")
    for name, run in (("this run", new), ("the baseline", old)):
        if run["other_work"] > LINE:
            found.append(
                f"during {name} other work took {run['other_work']:.0%} of the machine; repeat it when it is idle"
            )
    return found


def _at(record: Record, keys: tuple[str, ...]) -> Any:
    found: Any = record
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found
