"""What the Trainer calls once its device is known: managed memory on or off, for which kinds, within which bound."""

from __future__ import annotations

import logging
import os
import threading
from functools import partial
from typing import Any

import torch

from ..errors import GH200Error
from ..memory.budget import ManagedBudget, managed_budget
from ..memory.driver import CudaError, DeviceAttribute, Driver, load_driver
from ..memory.family import ONE_POOL, platform
from ..memory.hints import cuda_device
from ..memory.limits import format_size
from ..memory.residency import places
from ..runtime import MANAGED, MANAGED_MEMORY, Run
from .blocks import Blocks, Kind
from .overrides import OffloadTrainerOverrides
from .placement import OffloadPlacement, PlannedOffload
from .rejections import reject
from .torch_api import ALLOCATOR_VARIABLES, asks_patched_allocator
from .torch_pool import TorchPool, check_compiler, check_torch

logger = logging.getLogger("gh200.pools")
LOOK_SECONDS = 0.25

ALL = Kind("everything torch allocates", on_gpu=True)
KINDS = {
    "weights": Kind("weights", on_gpu=True),
    "gradients": Kind("gradients", on_gpu=True),
    "optimizer": Kind("optimizer state", on_gpu=False),
    "ema": Kind("EMA", on_gpu=False),
}
# A plan puts into managed memory only what stays with the CPU: what prefers the GPU would be evicted.
PLANNED = {name: Kind(kind.name, on_gpu=False) for name, kind in KINDS.items() if name != "weights"}
SCRATCH = Kind("optimizer scratch", on_gpu=True)


class ManagedMemory:
    """The pools of one run."""

    def __init__(self, driver: Driver, device: int, budget: ManagedBudget) -> None:
        self._driver, self._device, self.budget = driver, device, budget
        self._pools: dict[str, TorchPool] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="gh200-managed-memory", daemon=True)
        self._thread.start()

    def add(self, name: str, kind: Kind) -> TorchPool:
        """Makes the pool of one kind."""
        blocks = Blocks(kind, self._driver, self._device, self.budget)
        self._pools[name] = TorchPool(blocks, self._device)
        return self._pools[name]

    def pool(self, name: str) -> TorchPool | None:
        """The pool of one kind, where it has one."""
        return self._pools.get(name)

    def available(self) -> int:
        """Bytes that the pools may still grow by."""
        return min(self.budget.limit - self.budget.pools, self.budget.tightest.bytes)

    def owns(self, base: int) -> bool:
        """Whether one of the pools made this allocation."""
        return any(pool.blocks.owns(base) for pool in self._pools.values())

    def _look(self) -> None:
        """Does for native code what only Python can: reads how much memory is free and logs rejections."""
        while not self._ended.wait(LOOK_SECONDS):
            try:
                self.budget.look()
                self._tell()
            except Exception:
                # The figure of the last look stays, lowered by every block: too strict, never too loose.
                logger.warning("GH200 managed memory: nobody sees how much memory is free", exc_info=True)
                return

    def _tell(self) -> None:
        for pool in tuple(self._pools.values()):
            pool.blocks.tell()

    def report(self) -> dict[str, Any]:
        """The current state of all pools, as JSON."""
        kinds = {pool.blocks.kind.name: pool.blocks.report() for pool in self._pools.values()}
        ranges = [where for pool in self._pools.values() for where in pool.blocks.ranges()]
        report = {
            "kinds": kinds,
            "bytes": self.budget.pools,
            "limit_bytes": self.budget.limit,
            "limit": self.budget.name,
        }
        return report | {"places": places(self._driver, ranges, self._device)}

    def close(self) -> None:
        """Logs the peaks and frees the pools."""
        said = ", ".join(
            f"{pool.blocks.kind.name} {format_size(pool.blocks.peak)} ({pool.blocks.kind.place})"
            for pool in self._pools.values()
        )
        logger.info("GH200 managed memory at its peak: %s; bound %s", said, format_size(self.budget.limit))
        for pool in self._pools.values():
            pool.close()
        self._ended.set()
        self._thread.join()
        self._tell()


def begin_pools(trainer: Any, run: Run) -> None:
    """After the Accelerator and before any model; rejects what was never shown to be exact."""
    asked = run.settings.optimizations
    if asked.managed_memory == "off":
        return
    device = trainer.accelerator.device
    if device.type != "cuda":
        run.report_unavailable(MANAGED, f"this run trains on {device.type}; its memory is not divided")
        return
    if _patched_torch():
        run.report_on(MANAGED, "by the patched PyTorch's own allocator (use_uvm); our pools stay out of its way")
        return
    reject(trainer, planned=asked.managed_memory == "auto")
    check_torch()
    _check_allocator_settings()
    ordinal = cuda_device()
    driver = _driver_for(ordinal)
    budget = _budget(driver, ordinal, run)
    check_compiler(driver)
    memory = ManagedMemory(driver, ordinal, budget)
    run.hints.left_alone = memory.owns
    run.managed = memory.budget
    if asked.managed_memory == "all":
        memory.add("all", ALL).everywhere()
    else:
        placement = _placement(trainer, memory, asked)
        OffloadTrainerOverrides(trainer, placement)
        # The weights are copied into those that are there; what is made anew is the optimizer's.
        run.resuming = partial(placement.of, "optimizer")
    run.at_end(memory.close)
    run.measure(MANAGED_MEMORY, memory.report)
    run.report_on(MANAGED, _described(asked.managed_memory, memory))
    logger.info("GH200 managed memory: %s", run.on[MANAGED])


def _placement(trainer: Any, memory: ManagedMemory, asked: Any) -> OffloadPlacement:
    if asked.managed_memory == "auto":
        for name, kind in PLANNED.items():
            memory.add(name, kind)
        memory.add("scratch", SCRATCH)
        return PlannedOffload(memory, trainer, trainer.accelerator.device)
    for name in asked.managed_memory_targets:
        memory.add(name, KINDS[name])
    if "optimizer" in asked.managed_memory_targets:
        memory.add("scratch", SCRATCH)
    return OffloadPlacement(memory, trainer.accelerator.device)


def _described(mode: str, memory: ManagedMemory) -> str:
    kinds = "; ".join(f"{name}: {report['place']}" for name, report in memory.report()["kinds"].items())
    return f'"{mode}", stock torch {torch.__version__}; {kinds}; at most {format_size(memory.budget.limit)} ({memory.budget.name})'


def _patched_torch() -> bool:
    return any(asks_patched_allocator(os.environ.get(name, "")) for name in ALLOCATOR_VARIABLES)


# Settings of torch's allocator that its pools cannot have beside them, and why.
UNSUITABLE = {
    "expandable_segments:true": "torch maps expandable segments by itself; pools with an allocator of their own were never shown with them",
    "release_lock_on_cudamalloc:true": "two threads would make blocks at once, and the account of them is kept for one at a time",
    "per_process_memory_fraction:": "torch would count managed memory as if it were the GPU's own, and stop at that fraction",
}


def _check_allocator_settings() -> None:
    for name in ALLOCATOR_VARIABLES:
        settings = os.environ.get(name, "").replace(" ", "").lower()
        for setting, why in UNSUITABLE.items():
            if setting in settings:
                key = setting.split(":")[0]
                raise GH200Error(
                    f"managed memory and {key} exclude each other.",
                    where=name,
                    why=why,
                    fix=f"take {key} out of {name}, or set gh200_optimizations.managed_memory to off",
                )


def _driver_for(device: int) -> Driver:
    driver = load_driver()
    if not isinstance(driver, Driver):
        raise driver
    if platform(device).one_pool:
        raise GH200Error(
            "managed memory gives nothing on this machine.",
            why=f"{ONE_POOL}, and nothing beyond it",
            fix="set gh200_optimizations.managed_memory to off; a smaller model, batch or rank needs less memory",
        )
    if not driver.device_attribute(DeviceAttribute.CONCURRENT_MANAGED_ACCESS, device):
        raise GH200Error(
            f"managed memory needs a GPU that reads it while the CPU does; {driver.device_name(device)} does not.",
            why="without concurrent managed access the CPU must not touch managed memory while a kernel runs",
            fix="set gh200_optimizations.managed_memory to off on this machine",
        )
    return driver


def _budget(driver: Driver, device: int, run: Run) -> ManagedBudget:
    asked = run.settings.optimizations
    try:
        hbm = driver.memory_info(device)[1]
    except CudaError as error:
        raise GH200Error(
            "the GPU does not say how much memory it has.",
            why=str(error),
            fix="look at nvidia-smi; the GPU may be gone",
        ) from error
    return managed_budget(hbm, asked.uvm_oversubscription_ratio, asked.managed_memory_limit_gb)
