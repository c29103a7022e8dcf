"""Upstream's epoch and step counts, answered from the ramp's schedule."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .apply import RampControl


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
        return max(0, step - self.steps_through(epoch - 1))

    def note_epoch_step(self, step: int) -> None:
        """Upstream has just derived this from the micro-step counter and one constant window size."""
        from simpletuner.helpers.training.state_tracker import StateTracker

        StateTracker.set_epoch_step(self.step_in_epoch(int(self.trainer.state["current_epoch"]), step))
