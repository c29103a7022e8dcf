"""What a ramp says about itself: in one line, in notes, and in a rejection where nothing would ramp."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .noise_schedule import reject_what_cannot_grow
from .windows import MICRO_BATCHES, SAMPLES, STEPS, RampError

if TYPE_CHECKING:
    from .schedule import GH200GradientRamp

_NAMES = {MICRO_BATCHES: "micro-batches", SAMPLES: "samples", STEPS: "steps"}
BLOCK = "gh200_optimizations"
FEATURE = "the gradient accumulation ramp"


def describe(ramp: GH200GradientRamp) -> str:
    """The ramp in one line."""
    unit, start = ramp.samples_per_micro_batch, ramp.accumulation_steps(0)
    sizes = f"effective batch {start * unit} -> {ramp.target * unit} (accumulation {start} -> {ramp.target})"
    if ramp.shape == "measured":
        return f"{sizes} at most, measured, growing at most once in {ramp.length} {_NAMES[ramp.unit]}"
    how = f"a table of {len(ramp.table)} rows" if ramp.table else ramp.shape
    counted = f"{ramp.length} {_NAMES[ramp.unit]}"
    return f"{sizes}, {how}, over {counted} = {ramp.segments[-1].window} steps"


def notes(ramp: GH200GradientRamp) -> tuple[str, ...]:
    """Where what was asked for and what it becomes are not the same."""
    unit = ramp.samples_per_micro_batch
    asked = [("initial_effective_batch_size", ramp.initial_effective_batch_size, ramp.initial * unit)]
    asked += [("target_effective_batch_size", ramp.target_effective_batch_size, ramp.target * unit)]
    asked += [("the table's", size, ramp.accumulation_for(size) * unit) for _, size in ramp.table]
    found = [_becomes(ramp, *row) for row in asked if row[1] is not None and row[1] != row[2]]
    if ramp.shape == "staircase" and ramp.increment not in (None, ramp.stair * unit):
        found.append(f"the staircase increment {ramp.increment} becomes {ramp.stair * unit}")
    if ramp.gradient_accumulation_steps not in (1, ramp.target):
        key = "batch_rampup_table" if ramp.table else "target_effective_batch_size"
        found.append(
            f"gradient_accumulation_steps {ramp.gradient_accumulation_steps} is not used: "
            f"{key} decides, and gives {ramp.target}"
        )
    return tuple(found)


def _becomes(ramp: GH200GradientRamp, name: str, asked: int | None, becomes: int) -> str:
    unit = ramp.samples_per_micro_batch
    why = "is less than one micro-batch" if asked is not None and asked < unit else f"is not a multiple of {unit}"
    if ramp.shape == "measured" and name.startswith("initial") and asked is not None and asked < 2 * unit:
        why = "is less than two micro-batches, the least that can be measured"
    return (
        f"{name} {asked} {why} (train_batch_size {ramp.train_batch_size} x {ramp.num_processes} processes) "
        f"and becomes {becomes}"
    )


def reject_what_does_not_ramp(ramp: GH200GradientRamp) -> None:
    """A ramp that stands still, or goes down because its target was forgotten, is not what anybody meant."""
    unit = ramp.samples_per_micro_batch
    micro_batch = f"train_batch_size {ramp.train_batch_size} x {ramp.num_processes} processes = {unit} samples"
    forgotten = not ramp.table and ramp.target_effective_batch_size is None
    if forgotten and ramp.shape != "measured" and ramp.initial > ramp.target:
        raise RampError(
            f"The ramp would go down, from an effective batch of {ramp.initial * unit} to {ramp.target * unit}, "
            "and no target was given.",
            where=f"{BLOCK}.target_effective_batch_size",
            why=f"without it the target is {micro_batch}, times gradient_accumulation_steps "
            f"{ramp.gradient_accumulation_steps}",
            fix=f"set target_effective_batch_size: above {ramp.initial * unit} to go up, or {ramp.target * unit} if "
            "down is meant",
        )
    if ramp.shape == "measured":
        reject_what_cannot_grow(ramp)
        return
    sizes = {segment.size for segment in ramp.segments}
    if len(sizes) == 1 and (ramp.length or ramp.table):
        raise RampError(
            f"Nothing would ramp: the effective batch is {ramp.target * unit} from the first step to the last.",
            where=f"{BLOCK}.batch_rampup_table" if ramp.table else f"{BLOCK}.target_effective_batch_size",
            why="; ".join([f"one micro-batch is {micro_batch}, and no window is smaller", *notes(ramp)]),
            fix=f"a target of {2 * ramp.initial * unit} or more would ramp, a smaller train_batch_size too; or set "
            f"{BLOCK}.enable_batch_size_rampup to false",
        )
