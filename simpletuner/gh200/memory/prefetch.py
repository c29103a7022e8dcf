"""Moves ranges of managed memory to the GPU: one call for many, on a stream of its own, with what reads them put behind."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

from .driver import CudaError, Driver, Place, load_driver
from .pages import merged

logger = logging.getLogger("gh200.uvm")

DEFAULT_STREAM = 0


def reading_stream(device: int) -> int:
    """The stream of this thread whose kernels read what is moved."""
    import torch

    return torch.cuda.current_stream(device).cuda_stream if torch.cuda.is_available() else DEFAULT_STREAM


class Mover:
    """One stream and one event of the run's device, made when they are first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._device = 0
        self._stream = self._event = 0
        self._moves = self._bytes = 0

    def busy(self, driver: Driver) -> bool:
        """Whether what was moved last is still on its way."""
        return bool(self._event) and not driver.event_reached(self._event, self._device)

    def move(self, driver: Driver, ranges: Iterable[tuple[int, int]], device: int) -> None:
        """Kernels this thread queues from now on come after what is moved; nobody waits here."""
        with self._lock:
            self._device = device
            self._stream = self._stream or driver.create_stream(device)
            self._event = self._event or driver.create_event(device)
            whole = merged(ranges)
            driver.prefetch_all(whole, Place(device), self._stream, device)
            driver.record_event(self._event, self._stream, device)
            driver.wait_for_event(reading_stream(device), self._event, device)
            self._moves += 1
            self._bytes += sum(size for _, size in whole)

    def report(self) -> dict[str, int]:
        """Moves and bytes so far."""
        return {"moves": self._moves, "moved_bytes": self._bytes}

    def close(self) -> None:
        """Safe to call again, and when the driver has gone first."""
        with self._lock:
            event, stream, self._event, self._stream = self._event, self._stream, 0, 0
        driver = load_driver() if event or stream else None
        if not isinstance(driver, Driver):
            return
        for handle, destroy in ((event, driver.destroy_event), (stream, driver.destroy_stream)):
            try:
                if handle:
                    destroy(handle, self._device)
            except CudaError as error:
                logger.log(logging.DEBUG if error.device_gone else logging.WARNING, "GH200 hints: %s", error)
