"""The bytes a staging may take: what it stores for good, and the buffers of its threads while they compress."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ...memory.limits import Limit

_LOOK_EVERY = 64 << 20
# However small the limit is, it is looked at more than once.
_LOOKS = 16


class StagingBudget:
    """Shared by all threads of one staging. A thread waits only while it has reserved nothing, so there is no deadlock.

    `free` says what the machine has left now. It is asked again and again: others may stage as well (ranks of another node,
    another run), and all began with the same free memory.
    """

    def __init__(self, limit: Limit, free: Callable[[], Limit] | None = None) -> None:
        self.limit = self._most = limit
        self.used = 0
        self._free, self._step = free, min(_LOOK_EVERY, limit.bytes // _LOOKS)
        self._unseen = 0
        self._reserved = 0
        self._changed = threading.Condition()

    def reserve(self, size: int) -> bool:
        """Waits for what other threads have reserved, as most of that is returned; False where it does not fit even so."""
        with self._changed:
            self._unseen += size
            if self._unseen >= self._step:
                self._look()
            while self._reserved and not self._fits(size):
                self._changed.wait()
            if not self._fits(size):
                self._look()
            fits = self._fits(size)
            self._reserved += size if fits else 0
            return fits

    def _fits(self, size: int) -> bool:
        # Another process that takes memory has about as much reserved as this one.
        takers = 1 if self.limit is self._most else 2
        return self.used + takers * (self._reserved + size) <= self.limit.bytes

    def _look(self) -> None:
        self._unseen = 0
        free = self._free() if self._free is not None else self._most
        # Of what is reserved nobody knows how much is taken off already.
        alone = self.used + self._reserved + free.bytes >= self._most.bytes
        self.limit = self._most if alone else Limit(free.kind, free.name, self.used + free.bytes)

    def settle(self, reserved: int, kept: int) -> None:
        """Of a reservation so much is kept for good."""
        with self._changed:
            self._reserved -= reserved
            self.used += kept
            self._changed.notify_all()
