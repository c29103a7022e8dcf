"""The shape "measured": when a window grows, and why. Whole numbers of windows; the noise scale only says yes or no."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from .noise import SmoothedNoise
from .windows import RampError

if TYPE_CHECKING:
    from .schedule import GH200GradientRamp

MOST_GROWTH = 2


@dataclass(frozen=True)
class Growth:
    """One decision, as a checkpoint records it: from this window on, this effective batch, for this reason."""

    window: int
    samples: int
    effective_batch_size: int
    before: int
    at_least: float
    noise_scale: float | None
    reason: str

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The decision a checkpoint recorded."""
        try:
            return cls(**record)
        except TypeError as error:
            raise ValueError(f"a decision of the ramp is not one: {error}") from error


def growth(ramp: GH200GradientRamp, window: int, noise: SmoothedNoise) -> Growth | None:
    """Twice the window, or the target, once the noise scale is certain to reach that effective batch.

    At an effective batch equal to the noise scale a step makes half of the progress that an endless batch would make;
    below it, twice the batch makes up for nearly half of the steps.
    """
    size = ramp.accumulation_steps(window)
    larger = min(MOST_GROWTH * size, ramp.target)
    found = noise.interval()
    if larger <= size or found is None or not _far_enough(ramp, window):
        return None
    effective = larger * ramp.samples_per_micro_batch
    if found.low < effective:
        return None
    scale = "not distinguishable from noise" if found.value is None else f"{found.value:.4g}"
    return Growth(
        window=window,
        samples=ramp.samples_for(window),
        effective_batch_size=effective,
        before=size * ramp.samples_per_micro_batch,
        at_least=found.low,
        noise_scale=found.value,
        reason=f"noise scale {scale}, with 95 % certainty at least {found.low:.4g} samples: {effective} pays",
    )


def _far_enough(ramp: GH200GradientRamp, window: int) -> bool:
    if not ramp.grown:
        return True
    return ramp.place_of(window) - ramp.place_of(ramp.grown[-1][0]) >= ramp.batch_rampup_steps


def reject_what_cannot_grow(ramp: GH200GradientRamp) -> None:
    """Rejects a measured ramp whose target is not above its first window."""
    unit = ramp.samples_per_micro_batch
    if ramp.target > ramp.initial:
        return
    raise RampError(
        f"Nothing would ramp: a measured ramp opens with an effective batch of {ramp.initial * unit} and only grows; its "
        f"target is {ramp.target * unit}.",
        where="gh200_optimizations.target_effective_batch_size",
        why=f"one micro-batch is train_batch_size {ramp.train_batch_size} x {ramp.num_processes} processes = {unit} "
        "samples, and two of them are the least that can be measured",
        fix=f"a target of {MOST_GROWTH * ramp.initial * unit} or more would ramp, a smaller train_batch_size too",
    )
