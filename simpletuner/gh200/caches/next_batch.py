"""The latents of the batch that is being put together: moved to the GPU in one call, ahead of the kernels that read them."""

from __future__ import annotations

import threading

from ..memory import hints as uvm
from ..memory.driver import Driver
from .adaptive import AdaptivePrefetch
from .blocks import Slot


class NextBatch:
    """Collects from the threads that read latents; one batch ahead at most, and only what is not there already."""

    def __init__(self, hints: uvm.Hints, adaptive: AdaptivePrefetch | None = None) -> None:
        self._hints, self._adaptive = hints, adaptive
        self._lock = threading.Lock()
        self._slots: list[Slot] = []

    def add(self, slot: Slot) -> None:
        if slot.moved:
            self._hints.count("cache_prefetch", uvm.Outcome.RESIDENT)
        elif not slot.may_move:
            self._hints.count("cache_prefetch", uvm.Outcome.BEYOND_SHARE)
        elif self._adaptive is None or self._adaptive.moves:
            with self._lock:
                self._slots.append(slot)

    def go(self) -> None:
        """The batch is complete, and the caller's next kernels read it."""
        outcome = None
        if self._slots:
            with self._lock:
                slots, self._slots = self._slots, []
            if slots:
                outcome = uvm.attempt("cache_prefetch", lambda driver: self._move(driver, slots))
        if self._adaptive is not None:
            self._adaptive.batch(late=outcome is uvm.Outcome.STEPPED_BACK)
        if self._hints.mover.unordered:
            uvm.attempt("cache_order", self._order)

    def _order(self, driver: Driver) -> uvm.Outcome:
        self._hints.mover.put_behind(driver)
        return uvm.Outcome.APPLIED

    def forget(self) -> None:
        with self._lock:
            self._slots.clear()

    def _move(self, driver: Driver, slots: list[Slot]) -> uvm.Outcome:
        mover = self._hints.mover
        if mover.busy(driver):
            return uvm.Outcome.STEPPED_BACK
        block = slots[0].block
        assert block is not None
        mover.move(driver, [slot.pages() for slot in slots], block.device)
        for slot in slots:
            slot.moved = True
        return uvm.Outcome.APPLIED
