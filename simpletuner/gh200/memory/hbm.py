"""The memory of a GPU: how much of it is free, and how much caches may have."""

from __future__ import annotations

import logging
import threading

from .driver import Driver, load_driver
from .family import platform
from .limits import format_size, memory_limits
from .numa import file_cache_of
from .pages import PAGE

logger = logging.getLogger("gh200.uvm")

MARGIN = 0.1  # of all HBM: what training may still want after its first steps
FIRST_STEPS = 2  # optimizer steps: the first makes the optimizer's state, the second runs beside it


def free_and_total(device: int) -> tuple[int, int]:
    """Bytes of the memory a GPU allocates from; page cache that the kernel gives back is free, as in MemAvailable.

    The driver counts it as used: in one pool all of it, in NUMA mode what lies in HBM.
    """
    driver = load_driver()
    if not isinstance(driver, Driver):
        return _by_torch(device)
    free, total = driver.memory_info(device)
    machine = platform(device)
    if machine.one_pool:
        return min(total, memory_limits()[0].bytes), total
    cached = 0 if machine.hbm_node is None else file_cache_of(machine.hbm_node)
    return min(total, free + cached), total


def _by_torch(device: int) -> tuple[int, int]:
    import torch

    return torch.cuda.mem_get_info(device)


def bound_one_pool(device: int) -> bool:
    """Whether the GPU allocates from the CPU's memory; torch then raises an error before the machine runs out of it."""
    import torch

    if not platform(device).one_pool:
        return False
    free, total = free_and_total(device)
    torch.cuda.set_per_process_memory_fraction(free / total, device)
    logger.info("GH200 memory: one pool: torch may allocate %s of %s", format_size(free), format_size(total))
    return True


class HbmShare:
    """How many bytes of cached memory may prefer the GPU: none until training has allocated what it needs."""

    def __init__(self) -> None:
        self.bytes: int | None = None
        self.given = 0
        # Whether entries have it one by one, as copies of their own; pages of managed memory then stay where they are.
        self.by_entry = False
        self._first_step: int | None = None
        self._lock = threading.Lock()

    def due(self, optimizer_step: int) -> bool:
        """Whether it is time to measure; steps are counted from where this run began, which may be a checkpoint."""
        if self._first_step is None:
            self._first_step = optimizer_step
        return self.bytes is None and optimizer_step - self._first_step >= FIRST_STEPS

    def measured(self, free: int, total: int) -> None:
        """The share: free memory less a margin."""
        self.bytes = max(0, free - int(total * MARGIN))
        logger.info("GH200 memory: caches may use %d of %d free bytes of HBM", self.bytes, free)

    def take(self, wanted: int) -> int:
        """Whole pages, as many of the wanted bytes as are left."""
        if self.by_entry:
            return 0
        with self._lock:
            size = max(0, min(wanted, (self.bytes or 0) - self.given)) // PAGE * PAGE
            self.given += size
            return size

    def take_all(self, wanted: int) -> bool:
        """Every one of the wanted bytes, or none."""
        with self._lock:
            enough = self.given + wanted <= (self.bytes or 0)
            self.given += wanted if enough else 0
            return enough

    def short(self, free: int, total: int) -> bool:
        """Whether training has taken most of the margin, and wants back what caches have."""
        return free < int(total * MARGIN) // 2

    def close(self) -> None:
        """Nothing more is given in this run."""
        self.bytes = 0

    def give_back(self, size: int) -> None:
        """Returns bytes to the share."""
        with self._lock:
            self.given -= size

    def report(self) -> dict[str, int | None]:
        """The share and how much of it is in use."""
        return {"bytes": self.bytes, "given": self.given}
