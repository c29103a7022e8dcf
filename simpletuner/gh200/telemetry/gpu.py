"""The GPU's memory as NVML and torch count it; reading it makes nobody wait for the GPU."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from ..memory.driver import CudaError, Driver, load_driver
from .record import Hbm

_FROM_TORCH = {
    "allocated_bytes": "allocated_bytes.all.current",
    "reserved_bytes": "reserved_bytes.all.current",
    "peak_allocated_bytes": "allocated_bytes.all.peak",
}


class GpuMemory:
    """Of one device; NVML is opened at the first look and stays open until it is closed."""

    def __init__(self, device: int, problem: Callable[[str, str], None]) -> None:
        self._device, self._problem = device, problem
        self._name: str | None = None
        self._nvml: Any = None
        self._handle: Any = None
        self._of_torch: dict[str, int] = {}

    def ask_torch(self) -> None:
        """By the training's thread, between steps: torch's answer waits for its allocator and keeps the GIL, so that a
        thread of ours that asks would make the training wait."""
        if torch.cuda.is_initialized():
            told = torch.cuda.memory_stats(self._device)
            self._of_torch = {name: told.get(key, 0) for name, key in _FROM_TORCH.items()}

    def read(self) -> Hbm | None:
        driver = load_driver()
        if not isinstance(driver, Driver):
            return None
        if self._name is None:
            self._name = driver.device_name(self._device)
            self._open(driver)
        return Hbm(device=self._device, name=self._name, **self._of_the_gpu(driver), **self._of_torch)

    def _open(self, driver: Driver) -> None:
        try:
            nvml = import_module("pynvml")
            nvml.nvmlInit()
            self._nvml = nvml
            self._handle = nvml.nvmlDeviceGetHandleByUUID(driver.device_uuid(self._device))
        except Exception as error:  # bindings, library, or a container without the device: torch's figures remain
            self._problem("NVML", f"{type(error).__name__}: {error}")

    def _of_the_gpu(self, driver: Driver) -> dict[str, int]:
        found = {}
        try:
            free, total = driver.memory_info(self._device)
            found = {"used_bytes": total - free, "free_bytes": free, "total_bytes": total, "cuda_free_bytes": free}
        except CudaError as error:
            self._problem("CUDA driver", str(error))
        if self._handle is not None:
            told = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
            found |= {"used_bytes": told.used, "free_bytes": told.free, "total_bytes": told.total}
        return found

    def close(self) -> None:
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml = self._handle = None
