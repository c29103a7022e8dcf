"""How far ahead batches are moved to the GPU, decided from what was observed in this run: numbers in, a number out."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

logger = logging.getLogger("gh200.cache")

WINDOW = 32  # batches a decision looks at
_FEW = 8  # fewer say nothing
_WAITED, _RESIDENT = 0.1, 0.9


@dataclass(frozen=True)
class Observation:
    """One batch: were its entries where the GPU wanted them, how long did the step wait for data, how long was the step."""

    resident: bool
    waited: float
    step: float


@dataclass(frozen=True)
class Decision:
    depth: int
    reason: str


def decide(depth: int, seen: Sequence[Observation], bound: int) -> Decision:
    """The next depth, one more or one less than this one, between 0 and `bound`.

    More where steps wait for data that had not arrived. Less where the data was there and nobody waited: moving it
    earlier then only takes bandwidth from the step. Moving that does not help, because steps wait although everything
    was there, stops.
    """
    depth = max(0, min(depth, bound))
    if len(seen) < _FEW:
        return Decision(depth, f"{len(seen)} batches are too few to judge")
    total = sum(one.step for one in seen)
    waited = sum(one.waited for one in seen) / total if total > 0 else 0.0
    resident = sum(one.resident for one in seen) / len(seen)
    facts = f"{resident:.0%} of {len(seen)} batches were there, {waited:.0%} of the time was waiting"
    if waited > _WAITED and resident < _RESIDENT:
        return _moved(depth, depth + 1, bound, f"steps wait for data that is not there: {facts}")
    if waited > _WAITED:
        return _moved(depth, depth - 1, bound, f"steps wait although the data is there: {facts}")
    if resident >= _RESIDENT and waited == 0:
        return _moved(depth, depth - 1, bound, f"the data is there before it is needed: {facts}")
    return Decision(depth, f"nothing to mend: {facts}")


def _moved(depth: int, wanted: int, bound: int, reason: str) -> Decision:
    kept = max(0, min(wanted, bound))
    return Decision(kept, reason if kept != depth else f"{reason}; {depth} is the bound")


class AdaptiveDepth:
    """The depth of one run: observations in, a decision after each window; counted, and said when it changes."""

    def __init__(self, depth: int, bound: int) -> None:
        self.depth, self._bound = depth, bound
        self._seen: deque[Observation] = deque(maxlen=WINDOW)
        self._lock = threading.Lock()
        self._since = 0
        self.decisions: Counter[str] = Counter()
        self.last = Decision(depth, "not decided yet")

    def observe(self, seen: Observation) -> None:
        with self._lock:
            self._seen.append(seen)
            self._since += 1
            if self._since < WINDOW:
                return
            self._since = 0
            before, self.last = self.depth, decide(self.depth, self._seen, self._bound)
            self.depth = self.last.depth
        change = "deeper" if self.depth > before else "shallower" if self.depth < before else "kept"
        self.decisions[change] += 1
        if change != "kept":
            logger.info("GH200 prefetch: %d batches ahead instead of %d: %s", self.depth, before, self.last.reason)

    def report(self) -> dict[str, Any]:
        return {"depth": self.depth, "reason": self.last.reason, "decisions": dict(self.decisions)}


class BatchWatch:
    """Makes the observations of a run: what collate finds, and the clock at each micro-batch."""

    BOUND = 1  # what is moved is the batch being put together, so there is one to be ahead of

    def __init__(self) -> None:
        self.adaptive = AdaptiveDepth(self.BOUND, self.BOUND)
        self._resident = True
        self._began: float | None = None
        self._waited = 0.0

    @property
    def moves(self) -> bool:
        return self.adaptive.depth > 0

    def entry(self, *, resident: bool) -> None:
        self._resident = self._resident and resident

    def micro_batch_begins(self, waited: float) -> None:
        """`waited` counts the seconds of this run that were spent on waiting for data."""
        now = time.monotonic()
        if self._began is not None:
            self.adaptive.observe(Observation(self._resident, waited - self._waited, now - self._began))
        self._began, self._waited, self._resident = now, waited, True
