"""The GPU's own memory as others see it: whether the CPU reads it, and how much of it caches may have."""

from __future__ import annotations

import logging
import threading
from functools import cache

from .driver import DeviceAttribute, Driver, load_driver
from .pages import PAGE

logger = logging.getLogger("gh200.uvm")

NUMA_NODE = 1  # the driver's value of NUMA_CONFIG for memory that is a node of its own
MARGIN = 0.1  # of all HBM: what training may still want after its first steps
FIRST_STEPS = 2  # optimizer steps: the first makes the optimizer's state, the second runs beside it
CDMM = "this driver keeps HBM to itself (CDMM): a page in it cannot be read by the CPU, and ordinary memory does not move there"


@cache
def kept_by_the_driver(device: int) -> bool:
    """CDMM: coherent with the CPU, but HBM is no NUMA node."""
    driver = load_driver()
    if not isinstance(driver, Driver):
        return False
    coherent = driver.device_attribute(DeviceAttribute.PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, device)
    return bool(coherent) and driver.device_attribute(DeviceAttribute.NUMA_CONFIG, device) != NUMA_NODE


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
