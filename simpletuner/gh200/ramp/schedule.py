"""The gradient accumulation schedule: which optimizer step takes how many micro-batches, as pure arithmetic."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ..config.problems import start_problems
from . import messages
from .windows import MICRO_BATCHES, SAMPLES, STEPS, UNITS, RampError, Segment, Windows

__all__ = ["MEASURED", "SHAPES", "GH200GradientRamp", "RampError", "Segment"]
DEFAULT_RAMP_STEPS = 400
MEASURED = "measured"
# One alone has nothing to be compared with.
LEAST_MEASURED = 2
_Shape = Callable[[int, int, int, int], int]


def _linear(distance: int, done: int, total: int, stair: int) -> int:
    return (2 * distance * done + total) // (2 * total)


def _quadratic(distance: int, done: int, total: int, stair: int) -> int:
    return (2 * distance * done * done + total * total) // (2 * total * total)


def _staircase(distance: int, done: int, total: int, stair: int) -> int:
    stairs = -(-distance // stair)
    return min(distance, stair * (done * stairs // total))


# Whole numbers throughout: every rank, and every resumed run, must come to the same window sizes.
SHAPES: dict[str, _Shape] = {"quadratic": _quadratic, "linear": _linear, "staircase": _staircase}


def _whole(value: object, lowest: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= lowest


@dataclass(frozen=True)
class GH200GradientRamp(Windows):
    """Window k is optimizer step k; its size depends only on what came before it, counted in the ramp's unit."""

    initial_effective_batch_size: int | None = None
    target_effective_batch_size: int | None = None
    batch_rampup_steps: int = DEFAULT_RAMP_STEPS
    train_batch_size: int = 1
    num_processes: int = 1
    gradient_accumulation_steps: int = 1
    shape: str = "quadratic"
    increment: int | None = None
    unit: str = MICRO_BATCHES
    table: tuple[tuple[int, int], ...] = ()
    # The window and the samples at which a run went on with another number of processes, and the first and last size it
    # had by default before.
    continued: tuple[int, int] = (0, 0)
    kept: tuple[int, int] = (0, 0)
    # A measured ramp so far: windows and their effective sizes from there on.
    grown: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if problems := self._problems():
            raise RampError(
                "The gradient accumulation ramp cannot be built.",
                where="\n".join(problems),
                fix="correct these settings; docs/RAMP.md explains them",
            )

    def _problems(self) -> list[str]:
        lowest = {
            "initial_effective_batch_size": 1,
            "target_effective_batch_size": 1,
            "batch_rampup_steps": 0,
            "train_batch_size": 1,
            "num_processes": 1,
            "gradient_accumulation_steps": 1,
            "increment": 1,
        }
        optional = {"initial_effective_batch_size", "target_effective_batch_size", "increment"}
        problems = [
            f"{name} must be a whole number of at least {least}, not {getattr(self, name)!r}"
            for name, least in lowest.items()
            if not _whole(getattr(self, name), least) and not (name in optional and getattr(self, name) is None)
        ]
        if self.shape not in (*SHAPES, MEASURED):
            problems.append(f"shape must be one of {', '.join((*SHAPES, MEASURED))}, not {self.shape!r}")
        if self.unit not in UNITS:
            problems.append(f"unit must be one of {', '.join(UNITS)}, not {self.unit!r}")
        return problems + _table_problems(self.table)

    # Sizes

    @property
    def samples_per_micro_batch(self) -> int:
        """Samples of one micro-batch over all processes."""
        return self.train_batch_size * self.num_processes

    def accumulation_for(self, effective: int | None, default: int = 1) -> int:
        """The micro-batches that come nearest to an effective size."""
        if effective is None:
            return default
        return max(1, (2 * effective + self.samples_per_micro_batch) // (2 * self.samples_per_micro_batch))

    @cached_property
    def initial(self) -> int:
        """Micro-batches in a window at the start of the ramp."""
        asked = self.table[0][1] if self.table else self.initial_effective_batch_size or self.kept[0] or None
        return max(self.accumulation_for(asked), LEAST_MEASURED if self.shape == MEASURED else 1)

    @cached_property
    def target(self) -> int:
        """Micro-batches in a window once the ramp is over."""
        asked = self.table[-1][1] if self.table else self.target_effective_batch_size or self.kept[1] or None
        return self.accumulation_for(asked, self.gradient_accumulation_steps)

    @property
    def largest(self) -> int:
        """Micro-batches in the largest window."""
        if self.table:
            return max(self.accumulation_for(size) for _, size in self.table)
        return max(self.initial if self.batch_rampup_steps else self.target, self.target)

    @property
    def stair(self) -> int:
        """Micro-batches one stair of a staircase adds."""
        return self.accumulation_for(self.increment)

    @property
    def length(self) -> int:
        """Where the ramp is over, in its unit."""
        return self.table[-1][0] if self.table else self.batch_rampup_steps

    def size_at(self, position: int) -> int:
        """Size of a window that starts here, in the ramp's unit."""
        if position >= self.length:
            return self.target
        if self.table:
            return self.accumulation_for(self.table[self._row(position)][1])
        # Counted in samples the sizes are samples too: so they stay when the number of processes changes.
        scale = self.samples_per_micro_batch if self.unit == SAMPLES else 1
        first, last, stair = self.initial * scale, self.target * scale, self.stair * scale
        moved = SHAPES[self.shape](abs(last - first), position, self.length, stair)
        size = first + moved if last >= first else first - moved
        return self.accumulation_for(size) if self.unit == SAMPLES else size

    def _row(self, position: int) -> int:
        return bisect_right(self.table, position, key=lambda row: row[0]) - 1

    # Windows

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The windows, run-length encoded."""
        return tuple(self._walk_measured() if self.shape == MEASURED else self._walk())

    def _walk_measured(self) -> Iterator[Segment]:
        """As far as it is decided; the last size goes on until another decision."""
        first, samples = self.continued
        sizes = ((0, self.initial * self.samples_per_micro_batch), *self.grown)
        window, micro_batch, size = first, samples // self.samples_per_micro_batch, 0
        for start, effective in sizes:
            if start > first:
                yield Segment(window, micro_batch, size)
                window, micro_batch = start, micro_batch + (start - window) * size
            size = self.accumulation_for(effective)
        yield Segment(window, micro_batch, size)

    def place_of(self, window: int) -> int:
        """Where a window starts, in the ramp's unit."""
        rest = self.continued[1] % self.samples_per_micro_batch
        return self._position(window, self.micro_batches_for(window), rest)

    def most_micro_batches_for(self, steps: int) -> int:
        """The same as `micro_batches_for` but where a measured ramp may still grow: then as if it did at once."""
        last = self.segments[-1]
        if self.shape != MEASURED or steps <= last.window:
            return self.micro_batches_for(steps)
        return last.micro_batch + (steps - last.window) * max(last.size, self.target)

    def _walk(self) -> Iterator[Segment]:
        window, samples = self.continued
        micro_batch, rest = divmod(samples, self.samples_per_micro_batch)
        while (position := self._position(window, micro_batch, rest)) < self.length:
            size = self.size_at(position)
            yield Segment(window, micro_batch, size)
            step = {MICRO_BATCHES: size, SAMPLES: size * self.samples_per_micro_batch, STEPS: 1}[self.unit]
            count = -(-(self._size_ends(position, size) - position) // step)
            window, micro_batch = window + count, micro_batch + count * size
        yield Segment(window, micro_batch, self.target)

    def _position(self, window: int, micro_batch: int, rest: int) -> int:
        samples = micro_batch * self.samples_per_micro_batch + rest
        return {MICRO_BATCHES: micro_batch, SAMPLES: samples, STEPS: window}[self.unit]

    def _size_ends(self, position: int, size: int) -> int:
        if self.table:
            return self.table[self._row(position) + 1][0]
        same, other = position, self.length
        while other - same > 1:
            middle = (same + other) // 2
            same, other = (middle, other) if self.size_at(middle) == size else (same, middle)
        return other

    def samples_for(self, steps: int) -> int:
        """Samples the first `steps` optimizer steps take."""
        rest = self.continued[1] % self.samples_per_micro_batch
        return self.micro_batches_for(steps) * self.samples_per_micro_batch + rest

    def continued_at(self, window: int, samples: int, kept: tuple[int, int] = (0, 0)) -> GH200GradientRamp:
        """The same ramp of a run that has come this far with another number of processes."""
        return replace(self, continued=(window, samples), kept=kept)

    @property
    def sizes(self) -> tuple[int, int]:
        """First and last effective size, as they became."""
        return self.initial * self.samples_per_micro_batch, self.target * self.samples_per_micro_batch

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Where what was asked for and what it becomes are not the same."""
        return messages.notes(self)

    def describe(self) -> str:
        """The ramp in one line."""
        return messages.describe(self)

    def outline(self) -> list[tuple[int, int]]:
        """Optimizer steps at which the effective batch size changes, and what it is from there on."""
        found: list[tuple[int, int]] = []
        for segment in self.segments:
            size = segment.size * self.samples_per_micro_batch
            if not found or found[-1][1] != size:
                found.append((segment.window, size))
        return found

    def fingerprint(self) -> dict[str, Any]:
        """What must not change between a checkpoint and its resume; sizes are what they became."""
        shape = {"shape": self.shape, "stair": self.stair if self.shape == "staircase" else 0}
        if self.unit == SAMPLES:
            default = f"{self.gradient_accumulation_steps} micro-batches"
            rows = {"table": [list(row) for row in self.table]} if self.table else {}
            ramp = {
                "initial_samples": self.initial_effective_batch_size or "default",
                "target_samples": self.target_effective_batch_size or default,
                "batch_rampup_samples": self.length,
            }
            return {**(rows or {**ramp, "shape": self.shape, "stair": self.increment or 0}), "unit": self.unit}
        known = {
            "initial_accumulation_steps": self.accumulation_steps(0),
            "target_accumulation_steps": self.target,
            "batch_rampup_steps": self.length,
            **shape,
            "train_batch_size": self.train_batch_size,
            "num_processes": self.num_processes,
        }
        # Absent for what older revisions could do, so that their checkpoints are still recognised.
        if self.unit != MICRO_BATCHES:
            known["unit"] = self.unit
        if self.table:
            known["table"] = [list(row) for row in self.table]
        return known


def _table_problems(table: tuple[tuple[int, int], ...]) -> list[str]:
    if any(len(row) != 2 or not _whole(row[0], 0) or not _whole(row[1], 1) for row in table):
        return ["every row of the table must be [start, effective batch size], whole numbers, the size at least 1"]
    return start_problems([start for start, _ in table])
