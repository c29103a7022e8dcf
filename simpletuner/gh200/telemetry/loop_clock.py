"""Where the time of the training loop goes: marks in every micro-batch, by the CPU's clock."""

from __future__ import annotations

import time
from collections import Counter

from .record import Seconds


class LoopClock:
    """Each mark ends the interval before it. Another thread reads it and may see the previous mark."""

    def __init__(self) -> None:
        self._mark: float | None = None
        self._spent: Counter[str] = Counter()
        self._micro_batches = 0
        self._in_micro_batch = False

    def _passed(self, what: str) -> None:
        now = time.monotonic()
        if self._mark is not None:
            self._spent[what] += now - self._mark  # type: ignore[assignment]
        self._mark = now

    def batch_wanted(self) -> None:
        """The loop asks for the next batch."""
        # Where no optimizer step was logged, nothing has come between the micro-batch and this.
        self.micro_batch_ended()
        self._passed("other")

    def micro_batch_begins(self) -> None:
        """The batch is prepared."""
        self._passed("data")
        self._in_micro_batch = True

    def micro_batch_ended(self) -> None:
        """The micro-batch is done."""
        if self._in_micro_batch:
            self._passed("compute")
            self._micro_batches += 1
            self._in_micro_batch = False

    def seconds(self) -> Seconds:
        """Totals so far."""
        spent = {name: round(float(value), 4) for name, value in self._spent.copy().items()}
        return Seconds(micro_batches=self._micro_batches, **spent)
