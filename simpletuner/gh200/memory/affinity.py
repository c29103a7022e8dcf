"""The CPUs beside a run's GPU: Accelerate binds by NVML's number of a device, which is not CUDA's."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from .driver import Driver, load_driver

logger = logging.getLogger("gh200.uvm")

ASKED = "ACCELERATE_CPU_AFFINITY"  # what Accelerate's launcher makes of enable_cpu_affinity
_TRUE = frozenset({"1", "y", "yes", "t", "true", "on"})
_BITS = 64
TASKS = Path("/proc/self/task")


def bind_beside(device: int | None, environ: Mapping[str, str] = os.environ) -> None:
    """Where Accelerate was asked to bind this process, and took the CPUs of another GPU, move it to the right ones."""
    if device is None or environ.get(ASKED, "").lower() not in _TRUE:
        return
    try:
        wanted = cpus_beside(device)
    except Exception as error:  # NVML's own error type is its module's
        logger.warning("GH200: whether this process runs beside its GPU is unknown: %s", error)
        return
    bound = os.sched_getaffinity(0)
    if not wanted or wanted == bound:
        return
    # Accelerate bound the thread that asked, and those it started since have inherited that.
    for task in TASKS.iterdir():
        try:
            os.sched_setaffinity(int(task.name), wanted)
        except OSError as error:
            logger.warning("GH200: this process stays on CPUs %s: %s", sorted(bound), error)
            return
    logger.info(
        "GH200: GPU %d is beside CPUs %s: this process was moved there from %s", device, *map(sorted, (wanted, bound))
    )


def cpus_beside(device: int) -> set[int]:
    """By the UUID of CUDA's device; empty where there is no driver."""
    pynvml = import_module("pynvml")
    driver = load_driver()
    if not isinstance(driver, Driver):
        return set()
    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(driver.device_uuid(device))
        words = pynvml.nvmlDeviceGetCpuAffinity(handle, -(-(os.cpu_count() or 1) // _BITS))
    finally:
        pynvml.nvmlShutdown()
    return {word * _BITS + bit for word, bits in enumerate(words) for bit in range(_BITS) if bits >> bit & 1}
