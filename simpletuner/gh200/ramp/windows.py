"""Windows from their segments: which optimizer step takes which micro-batches, counted both ways."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from ..errors import GH200Error

MICRO_BATCHES, SAMPLES, STEPS = UNITS = ("micro_batches", "samples", "steps")


class RampError(GH200Error):
    """The ramp cannot be had as asked."""


class Segment(NamedTuple):
    """Consecutive windows of one size: where the first one starts, counted both ways."""

    window: int
    micro_batch: int
    size: int


class Windows:
    """A run continued with other processes knows its windows from there on; what came before is in proportion."""

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The windows, run-length encoded: as many entries as there are sizes, however long the ramp is."""
        raise NotImplementedError

    @property
    def samples_per_micro_batch(self) -> int:
        """Samples of one micro-batch over all processes; every effective size is a multiple of it."""
        raise NotImplementedError

    def _segment_of_window(self, window: int) -> Segment:
        found = bisect_right(self.segments, window, key=lambda segment: segment.window)
        return self.segments[max(found - 1, 0)]

    def accumulation_steps(self, window: int) -> int:
        """Micro-batches in a window."""
        return self._segment_of_window(window).size

    def effective_batch_size(self, window: int) -> int:
        """Samples in a window, over all processes."""
        return self.accumulation_steps(window) * self.samples_per_micro_batch

    def micro_batches_for(self, steps: int) -> int:
        """Micro-batches that the first `steps` optimizer steps take."""
        segment, steps = self._segment_of_window(steps), max(steps, 0)
        if steps < segment.window:
            return segment.micro_batch * steps // segment.window
        return segment.micro_batch + (steps - segment.window) * segment.size

    def locate(self, micro_batch: int) -> tuple[int, int]:
        """The window a micro-batch (counted from 0) belongs to, and its place in it."""
        found = bisect_right(self.segments, max(micro_batch, 0), key=lambda segment: segment.micro_batch)
        segment, micro_batch = self.segments[max(found - 1, 0)], max(micro_batch, 0)
        if micro_batch < segment.micro_batch:
            return segment.window * micro_batch // segment.micro_batch, 0
        windows, place = divmod(micro_batch - segment.micro_batch, segment.size)
        return segment.window + windows, place

    def steps_for(self, micro_batches: int) -> int:
        """Optimizer steps that this many micro-batches complete."""
        return self.locate(micro_batches)[0]
