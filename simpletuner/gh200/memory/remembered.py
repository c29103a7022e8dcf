"""What was timed on this machine is kept in one small file of the user's cache, by GPU, driver, torch and size."""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from ..own_files import user_cache, write_whole
from .driver import DeviceAttribute, Driver, load_driver
from .hbm import kept_by_the_driver
from .ways import WAYS, Timed, Timing

logger = logging.getLogger("gh200.cache")

FILE = "batch-ways.json"
_PATIENCE = 10.0  # seconds for another rank that is measuring: several times what one takes


def remembered_or_timed(
    device: int, batch_bytes: int, entries: int, measure: Callable[[int, int, int], Timed]
) -> tuple[Timed, str]:
    """What is known for batches of about that size, or what `measure` finds now; and where it came from.

    Ranks of one machine ask at once: one measures, the others find it remembered.
    """
    path, size = user_cache() / FILE, 1 << max(0, math.ceil(math.log2(max(1, batch_bytes))))
    key = f"{_machine(device)}, {size} bytes in {entries}"
    with _one_at_a_time(path):
        kept = _read(path)
        found = _timed(kept.get(key))
        if found is not None:
            return found, f"remembered in {path}"
        timed = measure(device, size, entries)
        if not timed.failed:
            _write(path, kept | {key: asdict(timed)})
    return timed, "measured now"


def _machine(device: int) -> str:
    """Everything that may change the figures and is not the batch's."""
    driver = load_driver()
    if not isinstance(driver, Driver):
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    coherent = driver.device_attribute(DeviceAttribute.PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, device)
    mode = "CDMM" if kept_by_the_driver(device) else "NUMA" if coherent else "PCIe"
    release = f"driver {_release() or driver.version}"
    return f"{driver.device_uuid(device)}, {release}, {mode}, torch {torch.__version__}"


def _release() -> str:
    """The driver's own version; CUDA's number stays the same over many of them."""
    try:
        pynvml = import_module("pynvml")
        pynvml.nvmlInit()
        try:
            return str(pynvml.nvmlSystemGetDriverVersion())
        finally:
            pynvml.nvmlShutdown()
    except Exception:  # NVML's own error type is its module's, which may not be there
        return ""


@contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    """A lock that ends with its process; where there is none to be had, everybody measures for himself."""
    lock = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        until = time.monotonic() + _PATIENCE
        while not _taken(lock) and time.monotonic() < until:
            time.sleep(0.05)
    except OSError as error:
        logger.debug("GH200 caches: %s is not locked: %s", path, error)
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(path: Path) -> dict[str, Any]:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        logger.warning("GH200 caches: %s cannot be read (%s); it is measured and written anew", path, error)
        return {}
    return kept if isinstance(kept, dict) else {}


def _timed(kept: Any) -> Timed | None:
    """None for what nobody of ours has written."""
    try:
        timings = {way: Timing(**kept["timings"][way]) for way in WAYS if way in kept["timings"]}
        if not timings or not all(0 < value < math.inf for each in timings.values() for value in asdict(each).values()):
            return None
        return Timed(int(kept["batch_bytes"]), int(kept["entries"]), int(kept["rounds"]), timings, {})
    except (TypeError, KeyError, ValueError):
        return None


def _write(path: Path, kept: dict[str, Any]) -> None:
    try:
        write_whole(path, json.dumps(kept, indent=1))
    except OSError as error:
        logger.info("GH200 caches: the figures are not kept, and the next run measures again: %s", error)
