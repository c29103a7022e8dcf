"""The bytes a staging may take: what it stores for good, and the buffers of its threads while they compress."""

from __future__ import annotations

import threading

from ..memory.limits import Limit


class StagingBudget:
    """Shared by all threads of one staging. A thread waits only while it holds nothing, so none waits for ever."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.used = 0
        self._reserved = 0
        self._changed = threading.Condition()

    def reserve(self, size: int) -> bool:
        """Waits for what other threads have reserved, as most of that comes back; False where there is no room even so."""
        with self._changed:
            while self._reserved and self.used + self._reserved + size > self.limit.bytes:
                self._changed.wait()
            fits = self.used + self._reserved + size <= self.limit.bytes
            self._reserved += size if fits else 0
            return fits

    def settle(self, reserved: int, kept: int) -> None:
        """Of a reservation so much is kept for good."""
        with self._changed:
            self._reserved -= reserved
            self.used += kept
            self._changed.notify_all()
