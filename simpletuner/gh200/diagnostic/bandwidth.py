"""Measures copies between host and GPU over the three paths a run uses: pageable, pinned, managed prefetch."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median

from ..memory.driver import CudaError
from ..memory.family import Family
from .device import Device, ProgressLine, ordinary
from .status import FAIL, PASS, SKIP, WARN, Result, gb

REPEATS = 5
LARGEST = 1 << 30
IN, OUT = "host to device", "device to host"
# Others measured these on a GH200 (arXiv 2407.07850, nvbandwidth); none of them is ours.
PUBLISHED_GB_S = (297.0, 375.0)
PEAK_GB_S = 450.0
POOL_GB_S = 273.0
NEAR_ENOUGH = 0.8
# The path that is judged.
PINNED = "pinned"

Step = Callable[[], None]


@dataclass(frozen=True)
class Rate:
    """GB/s over the repeats."""

    path: str
    direction: str
    median: float
    lowest: float
    highest: float


@dataclass(frozen=True)
class Bandwidth(Result):
    """How the copies went; no rates where none could be made."""

    bytes: int = 0
    repeats: int = 0
    published_gb_s: tuple[float, float] = PUBLISHED_GB_S
    rates: tuple[Rate, ...] = ()


@contextmanager
def _copied(device: Device, size: int, memory: AbstractContextManager[int]) -> Iterator[tuple[Step, Step]]:
    with memory as host, device.plain(size) as there:
        yield partial(device.copy_in, there, host, size), partial(device.copy_out, host, there, size)


@contextmanager
def _prefetched(device: Device, size: int) -> Iterator[tuple[Step, Step]]:
    with device.managed(size) as pointer:
        ctypes.memset(pointer, 1, size)
        yield partial(device.move_in, pointer, size), partial(device.move_out, pointer, size)


def measure(device: Device, available: Callable[[], int], family: Family, progress: ProgressLine) -> Bandwidth:
    """Time copies over each path and judge them."""
    rates: list[Rate] = []
    path = "free memory"
    try:
        size = device.sample(LARGEST, available())
        if not size:
            text = f"not enough free memory: {gb(device.memory()[0])} HBM, {gb(available())} on the host"
            return Bandwidth(SKIP, text, "free memory on the host or the GPU")
        paths = {"pageable": _copied(device, size, ordinary(size)), PINNED: _copied(device, size, device.pinned(size))}
        if device.shares_managed_memory:
            paths["managed prefetch"] = _prefetched(device, size)
        progress("bandwidth")
        for path, prepared in paths.items():
            with prepared as (into, out):
                rates += _rates(path, into, out, size)
    except CudaError as error:
        return Bandwidth(FAIL, f"{path}: {error}", "check nvidia-smi and dmesg", rates=tuple(rates))
    return _judged(tuple(rates), size, family)


def timed(step: Step) -> float:
    """Seconds that a step takes."""
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def _rates(path: str, into: Step, out: Step, size: int) -> list[Rate]:
    seconds: dict[str, list[float]] = {IN: [], OUT: []}
    # There and back in turn: managed memory moves only when it is on the other side. The first round warms up.
    for repeat in range(REPEATS + 1):
        for direction, step in ((IN, into), (OUT, out)):
            taken = timed(step)
            if repeat:
                seconds[direction].append(max(taken, 1e-9))
    found = []
    for direction, times in seconds.items():
        speeds = sorted(size / each / 1e9 for each in times)
        found.append(Rate(path, direction, *(round(value, 2) for value in (median(speeds), speeds[0], speeds[-1]))))
    return found


def _judged(rates: tuple[Rate, ...], size: int, family: Family) -> Bandwidth:
    shown = "; ".join(
        f"{rate.path} {rate.direction} {rate.median:.1f} ({rate.lowest:.1f} to {rate.highest:.1f})" for rate in rates
    )
    text = f"GB/s, median of {REPEATS} of {gb(size)} (lowest to highest): {shown}"
    low, high = PUBLISHED_GB_S
    published = f"published for GH200, not measured by us: {low:g} to {high:g}, peak {PEAK_GB_S:g} a direction"
    slow = [rate for rate in rates if rate.path == PINNED and rate.median < NEAR_ENOUGH * low]
    status, fix = PASS, ""
    if family is Family.ONE_POOL:
        text = f"{text}; not judged: copies stay inside one memory pool (GB10: {POOL_GB_S:g} at most, published)"
    elif family is not Family.COHERENT:
        text = f"{text}; not judged: this GPU is not coherent with the host ({published})"
    elif slow:
        status = WARN
        text = f"{text}; below {NEAR_ENOUGH:.0%} of the lowest {published}"
        fix = "bind the process to the GPU's own CPU node (numactl), stop other users of the memory, check c2c_links"
    else:
        text = f"{text}; {published}"
    return Bandwidth(status, text, fix, size, REPEATS, rates=rates)
