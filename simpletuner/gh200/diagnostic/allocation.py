"""Allocates managed memory beyond HBM, has the GPU write all of it, and reads it back on the host."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ..memory.driver import CudaError
from ..memory.pages import PAGE
from .device import GRANULE, Device, ProgressLine, holds
from .status import FAIL, PASS, SKIP, WARN, Result, gb

LARGEST_CHUNK = 256 << 20
_CHUNKS_WANTED = 16
_READERS = 8
NOT_PROVED = "not proved: speed, and that torch trains in it, for which there is --acceptance"


@dataclass(frozen=True)
class Allocation(Result):
    """How the test went; the counts stop where it stopped."""

    asked_bytes: int = 0
    size_bytes: int = 0
    hbm_bytes: int = 0
    chunk_bytes: int = 0
    chunks: int = 0
    filled: int = 0
    moved_to_gpu: int = 0
    verified: int = 0
    hbm_used_bytes: int = 0
    freed: bool | None = None
    seconds: float = 0.0


class Stopped(Exception):
    """The test ended early; the message says why."""


@dataclass
class _Run:
    """The test while it is under way."""

    device: Device
    size: int
    chunk: int
    available: Callable[[], int]
    progress: ProgressLine
    base: int = 0
    filled: int = 0
    moved: int = 0
    verified: int = 0
    hbm_used: int = 0

    @property
    def chunks(self) -> int:
        return -(-self.size // self.chunk)

    def part(self, index: int) -> tuple[int, int]:
        start = index * self.chunk
        return self.base + start, min(self.chunk, self.size - start)

    def fill(self) -> None:
        self.progress("written by the GPU")
        for index in range(self.chunks):
            # Pages that do not fit invoke the OOM killer, so the limit is read again before each chunk.
            if self.available() <= 0:
                raise Stopped(f"stopped before chunk {index + 1} of {self.chunks}: the host ran low on memory")
            pointer, size = self.part(index)
            try:
                self.device.move_in(pointer, size)
                self.device.fill(pointer, word_of(index), size)
            except CudaError as error:
                raise Stopped(f"chunk {index + 1} of {self.chunks}: {error}") from error
            self.filled += 1

    def residency(self) -> None:
        self.moved = sum(self.device.last_moved_here(*self.part(index)) for index in range(self.chunks))
        free, total = self.device.memory()
        self.hbm_used = total - free

    def verify(self) -> None:
        self.progress("read back by the host")
        pool = ThreadPoolExecutor(min(_READERS, os.cpu_count() or 1))
        try:
            for index, right in enumerate(pool.map(self._is_right, range(self.chunks))):
                if not right:
                    where = f"chunk {index + 1} of {self.chunks}"
                    raise Stopped(f"{where} has wrong bytes: they are not what the GPU wrote")
                self.verified += 1
        finally:
            # No reader may be left when the memory goes.
            pool.shutdown(wait=True, cancel_futures=True)

    def _is_right(self, index: int) -> bool:
        pointer, size = self.part(index)
        return holds(pointer, word_of(index), size)


def word_of(index: int) -> int:
    """A different word for every chunk, so that one chunk in place of another is noticed."""
    return 0x9E3779B1 * (index + 1) % 2**32


def chunk_for(size: int) -> int:
    """Bytes of a chunk."""
    wanted = size // _CHUNKS_WANTED // GRANULE * GRANULE
    return max(GRANULE, min(LARGEST_CHUNK, wanted))


def try_allocation(device: Device, scale: float, available: Callable[[], int], progress: ProgressLine) -> Allocation:
    """The whole test; the memory is freed however it ends."""
    began = time.monotonic()
    try:
        if not device.shares_managed_memory:
            return Allocation(SKIP, "this GPU has no concurrent managed access (see managed_memory)")
        free, hbm = device.memory()
    except CudaError as error:
        return Allocation(FAIL, f"the GPU's memory cannot be asked for: {error}", "check nvidia-smi and its processes")
    asked = int(hbm * scale) // PAGE * PAGE
    host = available()
    size = min(asked, (free + host) // PAGE * PAGE)
    if size < PAGE or (size < asked and size <= hbm):
        return Allocation(
            SKIP,
            f"{gb(asked)} ({scale:g} x HBM) cannot be tried: {gb(free)} of {gb(hbm)} HBM are free, "
            f"the host can give {gb(host)}",
            "free memory on the host or the GPU, raise the job's limit, or lower --oversubscription-scale",
            asked_bytes=asked,
            hbm_bytes=hbm,
        )
    run, problem = _Run(device, size, chunk_for(size), available, progress), ""
    try:
        # Also freed after a KeyboardInterrupt, which goes on from here.
        with device.managed(size) as run.base:
            try:
                run.fill()
                run.residency()
                run.verify()
            except (Stopped, CudaError) as error:
                problem = str(error)
    except CudaError as error:
        if not run.base:
            text = f"{gb(size)} of managed memory were rejected: {error}"
            return Allocation(FAIL, text, "lower --oversubscription-scale; check ulimit -v", asked, 0, hbm)
        problem = "; ".join(filter(None, (problem, f"the memory could not be freed: {error}")))
        return _verdict(run, asked, hbm, scale, problem, False, time.monotonic() - began)
    return _verdict(run, asked, hbm, scale, problem, True, time.monotonic() - began)


def _verdict(run: _Run, asked: int, hbm: int, scale: float, problem: str, freed: bool, seconds: float) -> Allocation:
    status, fix = PASS, ""
    if problem:
        left = "the memory was freed" if freed else "the memory goes with this process"
        text = f"{problem}; {left}. {run.filled} of {run.chunks} chunks were written, {run.verified} verified"
        status, fix = FAIL, "see dmesg for Xid errors and the OOM killer; try a smaller --oversubscription-scale"
    else:
        text = (
            f"proved: {gb(run.size)} of managed memory ({run.size / hbm:.2f} x HBM) were written by GPU "
            f"{run.device.ordinal} in {run.chunks} chunks and read back right by the host; "
            f"{run.moved} of {run.chunks} chunks were last moved to the GPU, HBM in use {gb(run.hbm_used)}; "
            f"{NOT_PROVED}"
        )
        if run.moved < run.chunks:
            status, fix = WARN, "the driver did not keep to the prefetches: see nvidia-smi for other users of the GPU"
        elif run.size < asked:
            text = f"only {run.size / hbm:.2f} x HBM of {scale:g} could be tried, all the host can give; {text}"
            status, fix = WARN, "free memory on the host, or raise the limit of the job or container"
        elif run.size <= hbm:
            text = f"nothing beyond HBM was asked for; {text}"
            status, fix = WARN, "use --oversubscription-scale above 1"
    return Allocation(
        status, text, fix, asked, run.size, hbm, run.chunk, run.chunks, run.filled, run.moved, run.verified,
        run.hbm_used, freed, round(seconds, 3),
    )  # fmt: skip
