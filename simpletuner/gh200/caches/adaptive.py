"""Adaptive prefetch: paused for a while where batches arrive too late to help, and then tried again."""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger("gh200.cache")

WINDOW = 32  # batches a decision looks at, and a pause lasts


class AdaptivePrefetch:
    """A batch is late if the pages of the one before it are still on their way when it is complete.

    Nothing is moved for a late batch, so a run whose batches are all late costs what one without prefetch does.
    """

    def __init__(self) -> None:
        self.moves = True
        self._batches = self._late = 0
        self._all, self._all_late, self._pauses = 0, 0, 0

    def batch(self, *, late: bool) -> None:
        """Once for each batch, paused or not."""
        self._batches += 1
        self._late += late
        self._all += 1
        self._all_late += late
        if self._batches < WINDOW:
            return
        pause = self.moves and 2 * self._late > WINDOW
        if pause:
            self._pauses += 1
            logger.info(
                "GH200 prefetch pauses: %d of %d batches were late; tried again after as many", self._late, WINDOW
            )
        self.moves, self._batches, self._late = not pause, 0, 0

    def report(self) -> dict[str, Any]:
        return {"moves": self.moves, "batches": self._all, "late": self._all_late, "pauses": self._pauses}
