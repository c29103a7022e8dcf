"""The transfer paths of a batch of cached entries to the GPU, timed side by side on this machine."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import batched, count
from statistics import median
from typing import Final, Literal

import torch

from .batch_copy import OneCopy, as_seen, cuda_bytes
from .driver import HOST, Advice, CudaError, DeviceAttribute, Driver, Place, load_driver
from .hbm import free_and_total
from .limits import memory_limits
from .pages import aligned

TransferPath = Literal["managed", "pinned", "hbm", "stock"]
TRANSFER_PATHS: Final[tuple[TransferPath, ...]] = ("managed", "pinned", "hbm", "stock")
DESCRIPTIONS: Final[dict[TransferPath, str]] = {
    "managed": "views of managed memory, read by the GPU where it is",
    "pinned": "plain RAM, one pinned buffer, one copy a batch",
    "hbm": "resident in the GPU's own memory",
    "stock": "SimpleTuner's own: every entry pinned anew and copied",
}
SECONDS = 1.5
_LEAST, _MOST = 3, 60  # rounds
_TURNS, _TURN_BYTES = 8, 256 << 20  # batches in turn: entries of a real cache do not wait in the CPU's own caches
_PART_OF_MEMORY = 4  # a measurement takes at most one part in so many of what is free

Step = Callable[[int], torch.Tensor]
Batch = list[torch.Tensor]


@dataclass(frozen=True)
class Timing:
    """Seconds from cached entries to one complete batch on the GPU."""

    median: float
    lowest: float
    highest: float


@dataclass(frozen=True)
class Timed:
    """What was measured with batches of so many bytes; a path that failed has its reason in `failed`."""

    batch_bytes: int
    entries: int
    rounds: int
    timings: dict[TransferPath, Timing]
    failed: dict[TransferPath, str]


def time_transfer_paths(
    device: int,
    batch_bytes: int,
    entries: int = 1,
    *,
    paths: Sequence[TransferPath] = TRANSFER_PATHS,
    seconds: float = SECONDS,
) -> Timed:
    """For a device of CUDA's and a batch of so many bytes: every path in turn, round by round, after one to warm up.

    Takes about `seconds`, draws no random number, leaves no memory behind. Where memory is short the batch is smaller.
    """
    size, turns = _fitting(device, batch_bytes, entries)
    failed: dict[TransferPath, str] = {}
    steps: dict[TransferPath, Step] = {}
    with ExitStack() as stack, torch.cuda.device(device), torch.inference_mode(False), torch.no_grad():
        sources = [[_filled(size // 2, turn + entry) for entry in range(entries)] for turn in range(turns)]
        for path in paths:
            try:
                steps[path] = stack.enter_context(_PREPARED[path](device, sources))
                steps[path](0)
                torch.cuda.synchronize(device)
            except (CudaError, RuntimeError) as error:
                steps.pop(path, None)
                failed[path] = str(error).splitlines()[0]
        times = _rounds(device, steps, failed, seconds)
    steps.clear()  # they reference what was resident
    torch.cuda.empty_cache()
    timings = {path: Timing(median(each), min(each), max(each)) for path, each in times.items() if path not in failed}
    return Timed(size * entries, entries, max((len(each) for each in times.values()), default=0), timings, failed)


def _rounds(
    device: int, steps: dict[TransferPath, Step], failed: dict[TransferPath, str], seconds: float
) -> dict[TransferPath, list[float]]:
    times: dict[TransferPath, list[float]] = {path: [] for path in steps}
    until = time.monotonic() + seconds
    for number in range(_MOST if steps else 0):
        if number >= _LEAST and time.monotonic() > until:
            break
        for path in [path for path in steps if path not in failed]:
            try:
                torch.cuda.synchronize(device)
                began = time.perf_counter()
                batch = steps[path](1 + number)
                torch.cuda.synchronize(device)
                times[path].append(max(time.perf_counter() - began, 1e-9))
                del batch
            except (CudaError, RuntimeError) as error:
                failed[path] = str(error).splitlines()[0]
    return times


def _fitting(device: int, batch_bytes: int, entries: int) -> tuple[int, int]:
    """The bytes of an entry and the number of batches that leave most of RAM and HBM to others."""
    free = min(free_and_total(device)[0], memory_limits()[0].bytes) // _PART_OF_MEMORY
    # Of each batch there are up to three copies at once: the entries, the one that is moved, the one that is made.
    size = max(2, min(batch_bytes, free // 3) // max(1, entries) // 2 * 2)
    return size, max(1, min(_TURNS, _TURN_BYTES // (size * entries), free // (size * entries) - 2))


def _filled(elements: int, number: int) -> torch.Tensor:
    return torch.full((elements,), 1.0 + number, dtype=torch.bfloat16)


@contextmanager
def _managed(device: int, sources: list[Batch]) -> Iterator[Step]:
    driver = load_driver()
    if not isinstance(driver, Driver):
        raise RuntimeError(driver.what)
    if not driver.device_attribute(DeviceAttribute.CONCURRENT_MANAGED_ACCESS, device):
        raise RuntimeError("this GPU does not read managed memory while the CPU does")
    entries = [entry for batch in sources for entry in batch]
    stride = aligned(entries[0].nbytes)
    start = driver.allocate_managed(stride * len(entries), device)
    try:
        driver.advise(start, stride * len(entries), Advice.SET_PREFERRED_LOCATION, HOST, device)
        driver.advise(start, stride * len(entries), Advice.SET_ACCESSED_BY, Place(device), device)
        views = []
        for pointer, entry in zip(count(start, stride), entries, strict=False):
            ctypes.memmove(pointer, entry.data_ptr(), entry.nbytes)
            views.append(as_seen(cuda_bytes(None, pointer, entry.nbytes, device), entry))
        batches = list(batched(views, len(sources[0])))
        yield lambda turn: torch.stack(batches[turn % len(batches)])
    finally:
        torch.cuda.synchronize(device)
        driver.free(start, device)


@contextmanager
def _pinned(device: int, sources: list[Batch]) -> Iterator[Step]:
    mover = OneCopy(device)
    try:
        yield lambda turn: torch.stack(mover.move(sources[turn % len(sources)]))
    finally:
        mover.close()


@contextmanager
def _resident(device: int, sources: list[Batch]) -> Iterator[Step]:
    there = [[entry.to(f"cuda:{device}") for entry in batch] for batch in sources]
    yield lambda turn: torch.stack(there[turn % len(there)])


@contextmanager
def _stock(device: int, sources: list[Batch]) -> Iterator[Step]:
    def step(turn: int) -> torch.Tensor:
        with ThreadPoolExecutor() as threads:
            pinned = list(threads.map(torch.Tensor.pin_memory, sources[turn % len(sources)]))
        return torch.stack([entry.to(f"cuda:{device}") for entry in pinned])

    yield step


_PREPARED = {"managed": _managed, "pinned": _pinned, "hbm": _resident, "stock": _stock}
