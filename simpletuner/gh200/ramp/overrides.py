"""Methods of upstream's Trainer, Validation and Evaluation, overridden to follow the ramp's windows."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..overrides import Overrides, override
from .messages import FEATURE
from .schedule import MEASURED, RampError

if TYPE_CHECKING:
    from .apply import RampControl

logger = logging.getLogger("gh200.ramp")


class EpochCounts:
    """Micro-batches and optimizer steps at epoch ends. Windows go on across epochs, so these are running sums."""

    def __init__(self, control: RampControl) -> None:
        self.control, self.trainer = control, control.trainer

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
        """Optimizer steps in the first `epochs` epochs."""
        return self.control.ramp.steps_for(self.micro_batches_through(epochs))

    def steps_in(self, epoch: int) -> int:
        """At least 1, which is also what upstream divides by."""
        return max(1, self.steps_through(epoch) - self.steps_through(epoch - 1))

    def epochs_for(self, steps: int) -> int:
        """Epochs it takes to make this many steps."""
        needed = self.control.ramp.most_micro_batches_for(steps) if any(self._batches_by_first_epoch().values()) else 0
        low, high = 0, 1
        while self.micro_batches_through(high) < needed:
            low, high = high, high * 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.micro_batches_through(middle) >= needed else (middle, high)
        return high

    def step_in_epoch(self, epoch: int, step: int) -> int:
        """Optimizer steps since the epoch began."""
        return max(0, step - self.steps_through(epoch - 1))

    def note_epoch_step(self, step: int) -> None:
        """Upstream has just derived this from the micro-step counter and one constant window size."""
        from simpletuner.helpers.training.state_tracker import StateTracker

        StateTracker.set_epoch_step(self.step_in_epoch(int(self.trainer.state["current_epoch"]), step))


class RampTrainerOverrides(Overrides):
    """Everything in the Trainer that turns batches into steps, or splits buckets by the accumulation steps."""

    upstream_class = "Trainer"
    feature, rejection = FEATURE, RampError

    def __init__(self, control: RampControl) -> None:
        super().__init__()
        self.control, self.trainer = control, control.trainer
        self.counts = control.counts
        self.asked: tuple[int, float] | None = None
        self.warned = False

    @override
    def init_data_backend(self, *args: Any, **kwargs: Any) -> Any:
        return self._with_largest_window(self.upstream.init_data_backend, *args, **kwargs)

    @override
    def _recalculate_training_steps(self) -> None:
        config = self.trainer.config
        # Upstream fills in the one that was left out, and calls this again later.
        self.asked = self.asked or (config.max_train_steps or 0, config.num_train_epochs or 0)
        steps, epochs = self.asked
        self.upstream._recalculate_training_steps()
        if not steps:
            config.max_train_steps = max(1, self.counts.steps_through(epochs))
            self._warn_that_steps_are_at_most()
        elif not epochs:
            config.num_train_epochs = self.counts.epochs_for(steps)
        config.initial_num_update_steps_per_epoch = config.num_update_steps_per_epoch = self.counts.steps_in(1)

    def _warn_that_steps_are_at_most(self) -> None:
        if self.control.ramp.shape != MEASURED or self.warned or not self.trainer.accelerator.is_main_process:
            return
        self.warned = True
        logger.warning(
            "GH200 ramp: how many steps %s epochs make is decided while the run measures; %d is the most. A learning rate "
            "that decays over the run ends early with it: give max_train_steps instead.",
            self.trainer.config.num_train_epochs,
            self.trainer.config.max_train_steps,
        )

    @override
    def _epoch_rollover(self, epoch: int) -> None:
        self.trainer.config.num_update_steps_per_epoch = self.counts.steps_in(epoch)
        self._with_largest_window(self.upstream._epoch_rollover, epoch)

    @override
    def _train_initial_msg(self) -> None:
        self.control.set_accumulation(self.control.ramp.accumulation_steps(self.trainer.state["global_step"]))
        self.upstream._train_initial_msg()
        if self.trainer.accelerator.is_main_process:
            _announce(self.control)

    @override
    def get_steps_per_epoch_for_epoch(self, epoch: int) -> int:
        return self.counts.steps_in(epoch)

    def _with_largest_window(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        # Buckets are split, and rejected as too small, by whole windows: the largest one has to fit.
        before = self.control.accumulation_steps
        self.control.set_accumulation(self.control.ramp.largest)
        try:
            return original(*args, **kwargs)
        finally:
            self.control.set_accumulation(before)


class RampValidationOverrides(Overrides):
    """When a step validation is due, and where in its epoch the run is."""

    upstream_class = "Validation"
    feature, rejection = FEATURE, RampError

    def __init__(self, control: RampControl) -> None:
        super().__init__()
        self.trainer, self.counts = control.trainer, control.counts

    @override
    def should_perform_intermediary_validation(self, step: int, *args: Any, **kwargs: Any) -> Any:
        # Upstream only asks whether `step` is a multiple of the window: 0 always is, 1 is where every step is.
        closed = self.trainer.accelerator.sync_gradients
        return self.upstream.should_perform_intermediary_validation(0 if closed else 1, *args, **kwargs)

    @override
    def _epoch_relative_step(self, steps_per_epoch: int) -> int:
        state = self.trainer.state
        return self.counts.step_in_epoch(int(state["current_epoch"]), int(state["global_step"]))


class RampEvaluationOverrides(Overrides):
    """How far the run is, in epochs."""

    upstream_class = "Evaluation"
    feature, rejection = FEATURE, RampError

    def __init__(self, control: RampControl) -> None:
        super().__init__()
        self.counts = control.counts

    @override
    def _epoch_progress(self, training_state: Mapping[str, Any], steps_per_epoch: float) -> float:
        epoch = int(training_state.get("current_epoch") or 1)
        done = self.counts.step_in_epoch(epoch, int(training_state.get("global_step", 0)))
        return epoch - 1 + done / self.counts.steps_in(epoch)


def override_validation(control: RampControl) -> None:
    """Validation and evaluation are made after the ramp, so this happens when the first window opens."""
    validation, evaluation = (getattr(control.trainer, name, None) for name in ("validation", "evaluation"))
    if validation is not None:
        RampValidationOverrides(control).install(validation)
    if evaluation is not None:
        RampEvaluationOverrides(control).install(evaluation)


def _announce(control: RampControl) -> None:
    ramp, config, done = control.ramp, control.trainer.config, control.trainer.state["global_step"]
    steps = int(config.max_train_steps)
    logger.info(
        "GH200 ramp: at step %d of %d the effective batch is %d; all %d steps take %s%d micro-batches. Steps and epochs "
        "above are the schedule's.",
        done,
        steps,
        ramp.effective_batch_size(done),
        steps,
        "at least " if ramp.shape == MEASURED else "",
        ramp.micro_batches_for(steps),
    )
    reached = ramp.effective_batch_size(max(steps - 1, 0))
    if steps < ramp.segments[-1].window and reached != ramp.target * ramp.samples_per_micro_batch:
        logger.warning(
            "GH200 ramp: training ends after %d micro-batches, before the ramp of %d is over; it reaches an effective "
            "batch of %d, not %d.",
            ramp.micro_batches_for(steps),
            ramp.micro_batches_for(ramp.segments[-1].window),
            reached,
            ramp.target * ramp.samples_per_micro_batch,
        )
