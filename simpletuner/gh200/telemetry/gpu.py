"""The GPU's memory as CUDA and torch count it; reading it does not synchronize."""

from __future__ import annotations

import torch

from ..memory.driver import Driver, load_driver
from ..memory.hbm import free_and_total
from .record import HbmMetrics

_FROM_TORCH = {
    "allocated_bytes": "allocated_bytes.all.current",
    "reserved_bytes": "reserved_bytes.all.current",
    "peak_allocated_bytes": "allocated_bytes.all.peak",
}


class GpuMemory:
    """Of one device."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._of_torch: dict[str, int] = {}

    def ask_torch(self) -> None:
        """On the training thread, between steps: torch takes its allocator's lock and keeps the GIL, so a query from
        another thread would stall training."""
        if torch.cuda.is_initialized():
            stats = torch.cuda.memory_stats(self._device)
            self._of_torch = {name: stats.get(key, 0) for name, key in _FROM_TORCH.items()}

    def read(self) -> HbmMetrics | None:
        """Current memory; None without a driver."""
        driver = load_driver()
        if not isinstance(driver, Driver):
            return None
        cuda_free, total = driver.memory_info(self._device)
        free, _ = free_and_total(self._device)
        return HbmMetrics(
            device=self._device,
            name=driver.device_name(self._device),
            used_bytes=total - free,
            free_bytes=free,
            total_bytes=total,
            cuda_free_bytes=cuda_free,
            **self._of_torch,
        )
