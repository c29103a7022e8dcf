"""The gradient accumulation schedule: which optimizer step takes how many micro-batches, as pure arithmetic."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ..errors import GH200Error

DEFAULT_RAMP_STEPS = 400
_Shape = Callable[[int, int, int, int], int]


class RampError(GH200Error):
    """The ramp cannot be had as asked."""


class Segment(NamedTuple):
    """Consecutive windows of one size: where the first one starts, counted both ways."""

    window: int
    micro_batch: int
    size: int


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
class GH200GradientRamp:
    """Window k is optimizer step k; its size depends only on how many micro-batches came before it."""

    initial_effective_batch_size: int | None = None
    target_effective_batch_size: int | None = None
    batch_rampup_steps: int = DEFAULT_RAMP_STEPS
    train_batch_size: int = 1
    num_processes: int = 1
    gradient_accumulation_steps: int = 1
    shape: str = "quadratic"
    increment: int | None = None

    def __post_init__(self) -> None:
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
        if self.shape not in SHAPES:
            problems.append(f"shape must be one of {', '.join(SHAPES)}, not {self.shape!r}")
        if problems:
            raise RampError(
                "The gradient accumulation ramp cannot be built.",
                where="\n".join(problems),
                fix="correct these settings; docs/RAMP.md explains them",
            )

    # Sizes

    @property
    def samples_per_micro_batch(self) -> int:
        """What one micro-batch of all processes together holds; every effective size is a multiple of it."""
        return self.train_batch_size * self.num_processes

    def _accumulation(self, effective: int | None, default: int) -> int:
        if effective is None:
            return default
        return max(1, (2 * effective + self.samples_per_micro_batch) // (2 * self.samples_per_micro_batch))

    @cached_property
    def initial(self) -> int:
        """Micro-batches in a window at the start of the ramp."""
        return self._accumulation(self.initial_effective_batch_size, 1)

    @cached_property
    def target(self) -> int:
        """Micro-batches in a window once the ramp is over."""
        return self._accumulation(self.target_effective_batch_size, self.gradient_accumulation_steps)

    @property
    def largest(self) -> int:
        return max(self.initial if self.batch_rampup_steps else self.target, self.target)

    @property
    def stair(self) -> int:
        """Micro-batches one stair of a staircase adds."""
        return self._accumulation(self.increment, 1)

    def size_at(self, micro_batch: int) -> int:
        """Size of a window that starts after this many micro-batches."""
        if micro_batch >= self.batch_rampup_steps:
            return self.target
        distance = abs(self.target - self.initial)
        moved = SHAPES[self.shape](distance, micro_batch, self.batch_rampup_steps, self.stair)
        return self.initial + moved if self.target >= self.initial else self.initial - moved

    # Windows

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The windows, run-length encoded: as many entries as there are sizes, however long the ramp is."""
        found: list[Segment] = []
        window = micro_batch = 0
        while micro_batch < self.batch_rampup_steps:
            size = self.size_at(micro_batch)
            found.append(Segment(window, micro_batch, size))
            count = -(-(self._size_ends(micro_batch, size) - micro_batch) // size)
            window, micro_batch = window + count, micro_batch + count * size
        found.append(Segment(window, micro_batch, self.target))
        return tuple(found)

    def _size_ends(self, micro_batch: int, size: int) -> int:
        same, other = micro_batch, self.batch_rampup_steps
        while other - same > 1:
            middle = (same + other) // 2
            same, other = (middle, other) if self.size_at(middle) == size else (same, middle)
        return other

    @cached_property
    def _first_windows(self) -> list[int]:
        return [segment.window for segment in self.segments]

    @cached_property
    def _first_micro_batches(self) -> list[int]:
        return [segment.micro_batch for segment in self.segments]

    def _segment_of_window(self, window: int) -> Segment:
        return self.segments[bisect_right(self._first_windows, max(window, 0)) - 1]

    def accumulation_steps(self, window: int) -> int:
        return self._segment_of_window(window).size

    def effective_batch_size(self, window: int) -> int:
        return self.accumulation_steps(window) * self.samples_per_micro_batch

    def micro_batches_for(self, steps: int) -> int:
        """Micro-batches that the first `steps` optimizer steps take."""
        segment = self._segment_of_window(steps)
        return segment.micro_batch + (max(steps, 0) - segment.window) * segment.size

    def locate(self, micro_batch: int) -> tuple[int, int]:
        """The window a micro-batch (counted from 0) belongs to, and its place in it."""
        segment = self.segments[bisect_right(self._first_micro_batches, max(micro_batch, 0)) - 1]
        windows, place = divmod(max(micro_batch, 0) - segment.micro_batch, segment.size)
        return segment.window + windows, place

    def steps_for(self, micro_batches: int) -> int:
        """Optimizer steps that this many micro-batches complete."""
        return self.locate(micro_batches)[0]

    def steps_for_samples(self, samples: int) -> int:
        return self.steps_for(samples // self.samples_per_micro_batch)

    # Words

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Where what was asked for and what it becomes are not the same."""
        unit, found = self.samples_per_micro_batch, []
        for name, size in (("initial", self.initial), ("target", self.target)):
            asked, becomes = getattr(self, f"{name}_effective_batch_size"), size * unit
            if asked is not None and asked != becomes:
                why = "is less than one micro-batch" if asked < unit else f"is not a multiple of {unit}"
                found.append(
                    f"{name}_effective_batch_size {asked} {why} (train_batch_size {self.train_batch_size} x "
                    f"{self.num_processes} processes) and becomes {becomes}"
                )
        if self.shape == "staircase" and self.increment not in (None, self.stair * unit):
            found.append(f"the staircase increment {self.increment} becomes {self.stair * unit}")
        if self.gradient_accumulation_steps not in (1, self.target):
            found.append(
                f"gradient_accumulation_steps {self.gradient_accumulation_steps} is not used: "
                f"target_effective_batch_size decides, and gives {self.target}"
            )
        return tuple(found)

    def describe(self) -> str:
        unit, start = self.samples_per_micro_batch, self.accumulation_steps(0)
        return (
            f"effective batch {start * unit} -> {self.target * unit} (accumulation {start} -> {self.target}), "
            f"{self.shape}, over {self.batch_rampup_steps} micro-batches = {self.segments[-1].window} steps"
        )

    def fingerprint(self) -> dict[str, int | str]:
        """What must not change between a checkpoint and its resume; sizes are what they became."""
        return {
            "initial_accumulation_steps": self.accumulation_steps(0),
            "target_accumulation_steps": self.target,
            "batch_rampup_steps": self.batch_rampup_steps,
            "shape": self.shape,
            "stair": self.stair if self.shape == "staircase" else 0,
            "train_batch_size": self.train_batch_size,
            "num_processes": self.num_processes,
        }
