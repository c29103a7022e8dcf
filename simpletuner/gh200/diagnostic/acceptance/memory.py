"""Managed memory on this machine: where pages lie, what hints and prefetches do, and what a full HBM does to pages."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from ...memory.driver import HOST, Advice, CudaError, Place, RangeAttribute
from ...memory.pages import PAGE
from ..bandwidth import REPEATS, timed
from ..device import Device, holds, ordinary
from ..status import gb
from .bench import Bench
from .claims import Answer, NotTested, judged

NUMA_MAPS = Path("/proc/self/numa_maps")
RANGES = 8
CHEAP = 0.5
ON_HOST = -1
WORD = 0x5EEDBA11
OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"


def first_touch(bench: Bench) -> Iterator[Answer]:
    """Where a page lies after the CPU touched it first."""
    size = bench.sample()
    with bench.managed(size) as pointer:
        bench.driver.advise(pointer, size, Advice.SET_PREFERRED_LOCATION, Place(bench.ordinal), bench.ordinal)
        before, _ = bench.device.memory()
        ctypes.memset(pointer, 1, size)
        grown = before - bench.device.memory()[0]
    in_hbm = grown >= size // 2
    expected = "in HBM, its preferred location" if bench.mode == "NUMA" else "with the CPU: it cannot map HBM here"
    seen = f"mode {bench.mode}: HBM in use grew by {gb(max(0, grown))} of {gb(size)}"
    yield judged("first_touch_managed", in_hbm == (bench.mode == "NUMA"), expected, seen, grown=grown, size=size)
    with ordinary(size) as pointer:
        nodes = _nodes_of(pointer)
    if nodes is None:
        raise NotTested("the kernel has no /proc/self/numa_maps")
    with_cpus = {node.number for node in bench.facts.host.nodes if node.cpus}
    right = bool(nodes) and set(nodes) <= with_cpus
    yield judged("first_touch_ordinary", right, "a node with CPUs", _shown(nodes) or "no page on any node")


def _nodes_of(pointer: int) -> dict[int, int] | None:
    """Pages per NUMA node of the mapping around a pointer; None where the kernel does not tell."""
    try:
        lines = NUMA_MAPS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    below = [(int(line.split(" ", 1)[0], 16), line) for line in lines]
    around = max(((start, line) for start, line in below if start <= pointer), default=(0, ""))
    return {int(node): int(pages) for node, pages in re.findall(r"\bN(\d+)=(\d+)", around[1])}


def _shown(nodes: dict[int, int]) -> str:
    return ", ".join(f"{pages} pages on node {node}" for node, pages in nodes.items())


def hints(bench: Bench) -> Iterator[Answer]:
    """What the driver keeps of the advice it is given."""
    size, gpu = bench.sample(), Place(bench.ordinal)
    location, read_mostly = RangeAttribute.PREFERRED_LOCATION, RangeAttribute.READ_MOSTLY
    advised = {
        "prefers the CPU": (Advice.SET_PREFERRED_LOCATION, HOST, location, ON_HOST),
        "prefers the GPU": (Advice.SET_PREFERRED_LOCATION, gpu, location, bench.ordinal),
        "read-mostly": (Advice.SET_READ_MOSTLY, gpu, read_mostly, 1),
        "read-mostly taken back": (Advice.UNSET_READ_MOSTLY, gpu, read_mostly, 0),
    }
    forgotten = []
    with bench.managed(size) as pointer:
        for name, (advice, place, attribute, right) in advised.items():
            bench.driver.advise(pointer, size, advice, place, bench.ordinal)
            if bench.driver.range_attribute(pointer, size, attribute, bench.ordinal) != right:
                forgotten.append(name)
    seen = f"not persisted: {', '.join(forgotten)}" if forgotten else "all persisted"
    yield judged("hints_remembered", not forgotten, ", ".join(advised), seen)
    if bench.mode != "NUMA":
        raise NotTested(f"mode {bench.mode}: no such call is made")
    with ordinary(size) as pointer:
        bench.driver.advise(pointer, size, Advice.SET_PREFERRED_LOCATION, gpu, bench.ordinal)
        bench.device.move_in(pointer, size)
        where = _shown(_nodes_of(pointer) or {}) or "the kernel does not say where"
    yield judged(
        "hints_ordinary", True, "accepted in NUMA mode; elsewhere we make no such call", f"accepted; afterwards {where}"
    )


def prefetch(bench: Bench) -> Iterator[Answer]:
    """What a prefetch moves and costs."""
    size = bench.sample() // (2 * RANGES) // PAGE * PAGE
    with bench.managed(2 * RANGES * size) as pointer:
        ctypes.memset(pointer, 1, 2 * RANGES * size)
        ranges = [(pointer + 2 * number * size, size) for number in range(RANGES)]
        for one in ranges:
            bench.device.move_out(*one)
        before, _ = bench.device.memory()
        bench.device.move_all_in(ranges)
        grown = before - bench.device.memory()[0]
        moved = sum(bench.device.last_moved_here(*one) for one in ranges)
        intact = all(holds(start, 0x01010101, length) for start, length in ranges)
    # The driver's own record of a prefetch says what was asked; HBM says what was done.
    right = moved == RANGES and grown >= RANGES * size // 2 and intact
    expected = f"all of {RANGES} ranges, {gb(RANGES * size)} more of HBM in use, the same bytes"
    seen = f"{moved} of {RANGES}, {gb(max(0, grown))} more in use, {'equal' if intact else 'wrong'} bytes"
    yield judged("one_call_for_many", right, expected, seen)
    yield _cost(bench)


def _cost(bench: Bench) -> Answer:
    size = bench.sample()
    away, there = [], []
    with bench.managed(size) as pointer:
        bench.device.fill(pointer, 1, size)
        for _ in range(REPEATS + 1):
            bench.device.move_out(pointer, size)
            away.append(timed(lambda: bench.device.move_in(pointer, size)))
            there.append(timed(lambda: bench.device.move_in(pointer, size)))
    moved, resident = median(away[1:]), median(there[1:])
    expected = f"at most {CHEAP:.0%} of the time"
    seen = f"{size >> 20} MiB: {moved * 1e6:.0f} us to move, {resident * 1e6:.0f} us when there already"
    measurements = {"bytes": float(size), "move_seconds": moved, "resident_seconds": resident}
    return bench.judged_speed("resident_is_cheap", resident <= CHEAP * moved, expected, seen, **measurements)


def pressure(bench: Bench) -> Iterator[Answer]:
    """Plain allocations take all of HBM while managed pages lie there, and the pages must survive."""
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
