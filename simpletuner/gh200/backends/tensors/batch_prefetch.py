"""The latents of a batch that is put together: moved to the GPU in one call, ahead of the kernels that read them."""

from __future__ import annotations

import logging
from typing import Any

from ...memory import hints
from ...memory.driver import Driver
from .blocks import Slot

logger = logging.getLogger("gh200.cache")

WINDOW = 32  # batches a decision looks at, and a pause lasts


class AdaptivePrefetch:
    """Prefetch is paused for a while where batches arrive too late to help, and then tried again.

    A batch is late if the pages of the one before it are still on their way when it is complete. Nothing is moved for
    a late batch, so a run whose batches are all late costs what one without prefetch does.
    """

    def __init__(self) -> None:
        self.moves = True
        self._late = 0  # of this window
        self._all, self._all_late, self._pauses = 0, 0, 0

    def batch(self, *, late: bool) -> None:
        """Once for each batch, paused or not."""
        self._late += late
        self._all += 1
        self._all_late += late
        if self._all % WINDOW:
            return
        pause = self.moves and 2 * self._late > WINDOW
        if pause:
            self._pauses += 1
            logger.info(
                "GH200 prefetch pauses: %d of %d batches were late; tried again after as many", self._late, WINDOW
            )
        self.moves, self._late = not pause, 0

    def report(self) -> dict[str, Any]:
        """Counters of batches and pauses."""
        return {"moves": self.moves, "batches": self._all, "late": self._all_late, "pauses": self._pauses}


class NextBatch:
    """One batch ahead at most, and only what is not there already."""

    def __init__(self, run_hints: hints.Hints, adaptive: AdaptivePrefetch | None = None) -> None:
        self._hints, self._adaptive = run_hints, adaptive

    def go(self, slots: list[Slot]) -> None:
        """The batch is complete, and the caller's next kernels read it."""
        waiting = []
        for slot in slots:
            if slot.moved:
                self._hints.count("cache_prefetch", hints.Outcome.RESIDENT)
            elif not slot.may_move:
                self._hints.count("cache_prefetch", hints.Outcome.BEYOND_SHARE)
            elif self._adaptive is None or self._adaptive.moves:
                waiting.append(slot)
        late = False
        if waiting:
            outcome = hints.attempt("cache_prefetch", lambda driver: self._move(driver, waiting))
            late = outcome is hints.Outcome.STEPPED_BACK
        if self._adaptive is not None:
            self._adaptive.batch(late=late)

    def _move(self, driver: Driver, slots: list[Slot]) -> hints.Outcome:
        mover = self._hints.mover
        if mover.busy(driver):
            return hints.Outcome.STEPPED_BACK
        block = slots[0].block
        assert block is not None
        mover.move(driver, [slot.pages() for slot in slots], block.device)
        for slot in slots:
            slot.moved = True
        return hints.Outcome.APPLIED
