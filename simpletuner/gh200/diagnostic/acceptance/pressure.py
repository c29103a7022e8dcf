"""HBM under pressure: plain allocations take all of it while managed pages lie there, and the pages must survive."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from ...memory.driver import CudaError
from ..device import Device, holds
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
        taken = _all_there_is(bench.device, size // 8)
        intact = holds(pointer, WORD, size)
    seen = f"{gb(before)} were free, {gb(size)} went to managed pages, plain allocations then got {gb(taken)}"
    expected = f"at least {gb(before - size // 2)}: the managed pages leave"
    yield judged(
        "evicted_for_plain", taken >= before - size // 2, expected, seen, taken=taken, free=before, managed=size
    )
    yield judged("evicted_intact", intact, "the bytes that the GPU wrote", "equal" if intact else "wrong bytes")


def _all_there_is(device: Device, grain: int) -> int:
    """Fills the GPU with plain memory for a moment, to within a grain of what the driver gives; the bytes it got."""
    taken, size = 0, device.memory()[1]
    with ExitStack() as blocks:
        while size >= grain:
            try:
                blocks.enter_context(device.plain(size))
                taken += size
            except CudaError as error:
                if error.name != OUT_OF_MEMORY:
                    raise
                size //= 2
    return taken
