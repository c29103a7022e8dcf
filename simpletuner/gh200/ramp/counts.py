"""Upstream's epoch and step counts, answered from the ramp's schedule by overrides bound to one Trainer."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .schedule import GH200GradientRamp, RampError

if TYPE_CHECKING:
    from .apply import RampControl

logger = logging.getLogger("gh200.ramp")


def replace(owner: Any, name: str, override: Callable[..., Any], *, optional: bool = False) -> None:
    """Bind `override(original, ...)` to this one object. `optional` is for methods that not every release has."""
    original = getattr(owner, name, None)
    if original is not None:
        setattr(owner, name, lambda *args, **kwargs: override(original, *args, **kwargs))
    elif not optional:
        raise RampError(
            f"This upstream's {type(owner).__name__} has no {name}.",
            why="the gradient accumulation ramp answers through it, and would be silently wrong without it",
            fix="use an upstream release the fork was verified on, or turn the ramp off",
        )


class EpochCounts:
    """Micro-batches and optimizer steps at epoch ends. Windows go on across epochs, so these are running sums."""

    def __init__(self, ramp: GH200GradientRamp, trainer: Any) -> None:
        self.ramp, self.trainer = ramp, trainer

    def _batches_by_first_epoch(self) -> dict[int, int]:
        config = self.trainer.config
        scheduled = getattr(config, "epoch_batches_schedule", None)
        return {int(epoch): batches for epoch, batches in (scheduled or {1: config.total_num_batches}).items()}

    def micro_batches_through(self, epochs: float) -> int:
        """Micro-batches in the first `epochs` epochs, by upstream's own count of batches per dataset."""
        whole, part = int(epochs), epochs - int(epochs)
        datasets = self._batches_by_first_epoch().items()
        total = sum(batches * max(0, whole - first + 1) for first, batches in datasets)
        return total + math.ceil(part * sum(batches for first, batches in datasets if first <= whole + 1))

    def steps_through(self, epochs: float) -> int:
        return self.ramp.steps_for(self.micro_batches_through(epochs))

    def steps_in(self, epoch: int) -> int:
        """At least 1, which is also what upstream divides by."""
        return max(1, self.steps_through(epoch) - self.steps_through(epoch - 1))

    def epochs_for(self, steps: int) -> int:
        """Epochs it takes to make this many steps."""
        needed = self.ramp.micro_batches_for(steps) if any(self._batches_by_first_epoch().values()) else 0
        low, high = 0, 1
        while self.micro_batches_through(high) < needed:
            low, high = high, high * 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.micro_batches_through(middle) >= needed else (middle, high)
        return high

    def step_in_epoch(self, epoch: int, step: int) -> int:
        return max(0, step - self.steps_through(epoch - 1))

    def note_epoch_step(self, step: int) -> None:
        """Upstream has just derived this from the micro-step counter and one constant window size."""
        from simpletuner.helpers.training.state_tracker import StateTracker

        StateTracker.set_epoch_step(self.step_in_epoch(int(self.trainer.state["current_epoch"]), step))


class CountOverrides:
    """Everything in the Trainer that turns batches into steps, or splits buckets by the accumulation steps."""

    def __init__(self, control: RampControl) -> None:
        self.control, self.trainer = control, control.trainer
        self.counts, self.ramp = control.counts, control.ramp
        self.asked: tuple[int, float] | None = None

    def bind(self) -> None:
        replace(self.trainer, "init_data_backend", self._with_largest_window)
        replace(self.trainer, "_recalculate_training_steps", self._recalculate)
        replace(self.trainer, "_epoch_rollover", self._roll_over)
        replace(self.trainer, "_train_initial_msg", self._greet)
        # Upstream asks this exactly once per epoch, when its batches have run out.
        replace(self.trainer, "_should_checkpoint_epoch", self._end_epoch)
        per_epoch = "get_steps_per_epoch_for_epoch"
        replace(self.trainer, per_epoch, lambda original, epoch: self.counts.steps_in(epoch), optional=True)

    def _with_largest_window(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        # Buckets are split, and refused as too small, by whole windows: the largest one has to fit.
        before = self.control.accumulation_steps
        self.control.set_accumulation(self.ramp.largest)
        try:
            return original(*args, **kwargs)
        finally:
            self.control.set_accumulation(before)

    def _recalculate(self, original: Callable[[], None]) -> None:
        config = self.trainer.config
        # Upstream fills in the one that was left out, and calls this again later.
        self.asked = self.asked or (config.max_train_steps or 0, config.num_train_epochs or 0)
        steps, epochs = self.asked
        original()
        if not steps:
            config.max_train_steps = max(1, self.counts.steps_through(epochs))
        elif not epochs:
            config.num_train_epochs = self.counts.epochs_for(steps)
        config.initial_num_update_steps_per_epoch = config.num_update_steps_per_epoch = self.counts.steps_in(1)

    def _roll_over(self, original: Callable[[int], None], epoch: int) -> None:
        self.trainer.config.num_update_steps_per_epoch = self.counts.steps_in(epoch)
        self._with_largest_window(original, epoch)

    def _greet(self, original: Callable[[], None]) -> None:
        self.control.set_accumulation(self.ramp.accumulation_steps(self.trainer.state["global_step"]))
        original()
        if self.trainer.accelerator.is_main_process:
            _announce(self.control)

    def _end_epoch(self, original: Callable[[int], bool], epoch: int) -> bool:
        self.control.epoch_ended = True
        return original(epoch)


def _announce(control: RampControl) -> None:
    ramp, config, done = control.ramp, control.trainer.config, control.trainer.state["global_step"]
    steps = int(config.max_train_steps)
    logger.info(
        "GH200 ramp: at step %d of %d the effective batch is %d; all %d steps take %d micro-batches. Steps and epochs "
        "above are the schedule's.",
        done,
        steps,
        ramp.effective_batch_size(done),
        steps,
        ramp.micro_batches_for(steps),
    )
    reached = ramp.effective_batch_size(max(steps - 1, 0))
    if (
        ramp.micro_batches_for(steps) < ramp.batch_rampup_steps
        and reached != ramp.target * ramp.samples_per_micro_batch
    ):
        logger.warning(
            "GH200 ramp: training ends after %d micro-batches, before the ramp of %d is over; it reaches an effective "
            "batch of %d, not %d.",
            ramp.micro_batches_for(steps),
            ramp.batch_rampup_steps,
            reached,
            ramp.target * ramp.samples_per_micro_batch,
        )


def bind_validation(control: RampControl) -> None:
    """Validation and evaluation are made after the ramp, so this happens when the first window opens."""
    trainer, counts = control.trainer, control.counts

    def due(original: Callable[..., bool], step: int, *args: Any, **kwargs: Any) -> bool:
        # Upstream only asks whether `step` is a multiple of the window: 0 always is, 1 is where every step is.
        return original(0 if trainer.accelerator.sync_gradients else 1, *args, **kwargs)

    def relative_step(original: Callable[[int], int | None], steps_per_epoch: int) -> int | None:
        return counts.step_in_epoch(int(trainer.state["current_epoch"]), int(trainer.state["global_step"]))

    def progress(original: Callable[..., float | None], state: dict[str, Any], steps_per_epoch: float) -> float:
        epoch = int(state.get("current_epoch") or 1)
        return epoch - 1 + counts.step_in_epoch(epoch, int(state.get("global_step", 0))) / counts.steps_in(epoch)

    validation, evaluation = getattr(trainer, "validation", None), getattr(trainer, "evaluation", None)
    if validation is not None:
        replace(validation, "should_perform_intermediary_validation", due)
        replace(validation, "_epoch_relative_step", relative_step, optional=True)
    if evaluation is not None:
        replace(evaluation, "_epoch_progress", progress, optional=True)
