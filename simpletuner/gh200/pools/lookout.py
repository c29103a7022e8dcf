"""A thread that does for native code what only Python can: it looks for room, and says what was refused."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ..memory.budget import ManagedBudget

logger = logging.getLogger("gh200.pools")
SECONDS = 0.25


class Lookout:
    def __init__(self, budget: ManagedBudget, tell: Callable[[], None]) -> None:
        self._budget, self._tell = budget, tell
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="gh200-managed-memory", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._ended.wait(SECONDS):
            try:
                self._budget.look()
                self._tell()
            except Exception:
                # The figure of the last look stays, lowered by every block: too strict, never too loose.
                logger.warning("GH200 managed memory: nobody sees how much memory is free", exc_info=True)
                return

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        self._tell()
