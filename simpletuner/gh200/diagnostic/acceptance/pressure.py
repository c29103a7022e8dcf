"""HBM under pressure: plain allocations take all of it while managed pages lie there, and the pages must survive."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from ...memory.driver import CudaError
from ..allocation import checksum_of
from ..result import gb
from .bench import Bench
from .claims import Answer, judged

WORD = 0x5EEDBA11
OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"


def pressure(bench: Bench) -> Iterator[Answer]:
    size = bench.sample()
    before, _ = bench.device.memory()
    with bench.managed(size) as pointer:
        bench.device.move_in(pointer, size)
        bench.device.fill(pointer, WORD, size)
        with ballast(bench, size // 8) as taken:
            pass
        held = memoryview((ctypes.c_ubyte * size).from_address(pointer))
        intact = zlib.crc32(held) == checksum_of(WORD, size)
        del held
    seen = f"{gb(before)} were free, {gb(size)} went to managed pages, plain allocations then got {gb(taken)}"
    expected = f"at least {gb(before - size // 2)}: the managed pages leave"
    yield judged(
        "evicted_for_plain", taken >= before - size // 2, expected, seen, taken=taken, free=before, managed=size
    )
    yield judged("evicted_intact", intact, "the checksum of what the GPU wrote", "equal" if intact else "wrong bytes")


@contextmanager
def ballast(bench: Bench, grain: int) -> Iterator[int]:
    """Fills the GPU with plain memory, to within a grain of what the driver gives; the bytes it got."""
    blocks: list[tuple[int, int]] = []
    try:
        size = bench.device.memory()[1]
        while size >= grain:
            try:
                blocks.append((bench.device.allocate(size), size))
            except CudaError as error:
                if error.name != OUT_OF_MEMORY:
                    raise
                size //= 2
        yield sum(size for _, size in blocks)
    finally:
        for pointer, _ in blocks:
            bench.device.free(pointer)
