"""Measures copies between host and GPU over the three paths a run uses: pageable, pinned, managed prefetch."""

from __future__ import annotations

import ctypes
import mmap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

from ..memory.driver import CudaError
from .allocation import SMALLEST_CHUNK, Tell
from .device import Device
from .result import FAIL, PASS, SKIP, WARN, gb

REPEATS = 5
LARGEST = 1 << 30
IN, OUT = "host to device", "device to host"
# Others measured these on a GH200 (arXiv 2407.07850, nvbandwidth); none of them is ours.
PUBLISHED_GB_S = (297.0, 375.0)
PEAK_GB_S = 450.0
NEAR_ENOUGH = 0.8
JUDGED_PATH = "pinned"

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
class Bandwidth:
    status: str
    message: str
    fix: str = ""
    bytes: int = 0
    repeats: int = 0
    published_gb_s: tuple[float, float] = PUBLISHED_GB_S
    rates: tuple[Rate, ...] = ()


@contextmanager
def _pageable(device: Device, size: int) -> Iterator[tuple[Step, Step]]:
    mapping = mmap.mmap(-1, size)
    buffer = (ctypes.c_ubyte * size).from_buffer(mapping)
    host = ctypes.addressof(buffer)
    ctypes.memset(host, 1, size)
    there = device.allocate(size)
    try:
        yield lambda: device.copy_in(there, host, size), lambda: device.copy_out(host, there, size)
    finally:
        device.free(there)
        del buffer
        mapping.close()


@contextmanager
def _pinned(device: Device, size: int) -> Iterator[tuple[Step, Step]]:
    host = device.allocate_pinned(size)
    try:
        ctypes.memset(host, 1, size)
        there = device.allocate(size)
        try:
            yield lambda: device.copy_in(there, host, size), lambda: device.copy_out(host, there, size)
        finally:
            device.free(there)
    finally:
        device.free_pinned(host)


@contextmanager
def _managed(device: Device, size: int) -> Iterator[tuple[Step, Step]]:
    pointer = device.allocate_managed(size)
    try:
        ctypes.memset(pointer, 1, size)
        yield lambda: device.move_in(pointer, size), lambda: device.move_out(pointer, size)
    finally:
        device.free(pointer)


PATHS = {"pageable": _pageable, "pinned": _pinned, "managed prefetch": _managed}


def measure(device: Device, room: Callable[[], int], coherent: bool, tell: Tell) -> Bandwidth:
    rates: list[Rate] = []
    path = ""
    try:
        free, _ = device.memory()
        size = min(LARGEST, free // 4, room() // 4) // SMALLEST_CHUNK * SMALLEST_CHUNK
        if not size:
            fix = "free memory on the host or the GPU"
            return Bandwidth(SKIP, f"not enough free memory: {gb(free)} HBM, {gb(room())} on the host", fix)
        paths = {name: path for name, path in PATHS.items() if path is not _managed or device.shares_managed_memory}
        for number, (path, prepare) in enumerate(paths.items()):
            tell("bandwidth", number / len(paths))
            with prepare(device, size) as (into, out):
                rates += _rates(path, into, out, size)
    except CudaError as error:
        return Bandwidth(FAIL, f"{path}: {error}", "check nvidia-smi and dmesg", rates=tuple(rates))
    tell("bandwidth", 1.0)
    return _judged(tuple(rates), size, coherent)


def _rates(path: str, into: Step, out: Step, size: int) -> list[Rate]:
    seconds: dict[str, list[float]] = {IN: [], OUT: []}
    # There and back in turn: managed memory moves only when it is on the other side. The first round warms up.
    for repeat in range(REPEATS + 1):
        for direction, step in ((IN, into), (OUT, out)):
            began = time.perf_counter()
            step()
            if repeat:
                seconds[direction].append(max(time.perf_counter() - began, 1e-9))
    found = []
    for direction, times in seconds.items():
        speeds = sorted(size / each / 1e9 for each in times)
        found.append(Rate(path, direction, *(round(value, 2) for value in (median(speeds), speeds[0], speeds[-1]))))
    return found


def _judged(rates: tuple[Rate, ...], size: int, coherent: bool) -> Bandwidth:
    shown = "; ".join(
        f"{rate.path} {rate.direction} {rate.median:.1f} ({rate.lowest:.1f} to {rate.highest:.1f})" for rate in rates
    )
    text = f"GB/s, median of {REPEATS} of {gb(size)} (lowest to highest): {shown}"
    low, high = PUBLISHED_GB_S
    published = f"published for GH200, not measured by us: {low:g} to {high:g}, peak {PEAK_GB_S:g} a direction"
    slow = [rate for rate in rates if rate.path == JUDGED_PATH and rate.median < NEAR_ENOUGH * low]
    if not coherent:
        status, fix = PASS, ""
        text = f"{text}; not judged: this GPU is not coherent with the host ({published})"
    elif slow:
        status, fix = (
            WARN,
            "bind the process to the GPU's own CPU node (numactl), stop other users of the memory, check c2c_links",
        )
        text = f"{text}; below {NEAR_ENOUGH:.0%} of the lowest {published}"
    else:
        status, fix = PASS, ""
        text = f"{text}; {published}"
    return Bandwidth(status, text, fix, size, REPEATS, rates=rates)
