"""Hints and prefetches: what the driver accepts and remembers, and what a prefetch costs when pages are there already."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median

from ...memory.driver import HOST, Advice, Place, RangeAttribute
from ...memory.pages import PAGE
from ..bandwidth import REPEATS
from ..device import ordinary
from .bench import Bench
from .claims import NOT_TESTED, Answer, judged
from .touching import nodes_of

RANGES = 8
CHEAP = 0.5
ON_HOST = -1


def hints(bench: Bench) -> Iterator[Answer]:
    size = bench.sample()
    gpu = Place(bench.ordinal)
    with bench.managed(size) as pointer:

        def after(advice: Advice, place: Place, attribute: RangeAttribute) -> int:
            bench.driver.advise(pointer, size, advice, place, bench.ordinal)
            return bench.driver.range_attribute(pointer, size, attribute, bench.ordinal)

        told = {
            "prefers the CPU": after(Advice.SET_PREFERRED_LOCATION, HOST, RangeAttribute.PREFERRED_LOCATION) == ON_HOST,
            "prefers the GPU": after(Advice.SET_PREFERRED_LOCATION, gpu, RangeAttribute.PREFERRED_LOCATION)
            == bench.ordinal,
            "read-mostly": after(Advice.SET_READ_MOSTLY, gpu, RangeAttribute.READ_MOSTLY) == 1,
            "read-mostly taken back": after(Advice.UNSET_READ_MOSTLY, gpu, RangeAttribute.READ_MOSTLY) == 0,
        }
    forgotten = [name for name, right in told.items() if not right]
    seen = f"not remembered: {', '.join(forgotten)}" if forgotten else "all remembered"
    yield judged("hints_remembered", not forgotten, ", ".join(told), seen)
    yield _ordinary(bench, size)


def _ordinary(bench: Bench, size: int) -> Answer:
    expected = "accepted in NUMA mode; elsewhere we make no such call"
    if bench.mode != "NUMA":
        return Answer("hints_ordinary", NOT_TESTED, expected, f"mode {bench.mode}: no such call is made")
    with ordinary(size) as pointer:
        bench.driver.advise(pointer, size, Advice.SET_PREFERRED_LOCATION, Place(bench.ordinal), bench.ordinal)
        bench.device.move_in(pointer, size)
        nodes = nodes_of(pointer) or {}
    where = (
        ", ".join(f"{pages} pages on node {node}" for node, pages in nodes.items()) or "the kernel does not say where"
    )
    return judged("hints_ordinary", True, expected, f"accepted; afterwards {where}")


def prefetch(bench: Bench) -> Iterator[Answer]:
    yield _many(bench)
    yield _cost(bench)


def _many(bench: Bench) -> Answer:
    with bench.managed(2 * RANGES * PAGE) as pointer:
        ranges = [(pointer + 2 * number * PAGE, PAGE) for number in range(RANGES)]
        stream = bench.driver.create_stream(bench.ordinal)
        try:
            bench.driver.prefetch_all(ranges, Place(bench.ordinal), stream, bench.ordinal)
            bench.driver.finish_stream(stream, bench.ordinal)
        finally:
            bench.driver.destroy_stream(stream, bench.ordinal)
        moved = sum(bench.device.last_moved_here(*one) for one in ranges)
    expected = f"all of {RANGES} ranges were last moved to the GPU"
    return judged("one_call_for_many", moved == RANGES, expected, f"{moved} of {RANGES}")


def _cost(bench: Bench) -> Answer:
    size = bench.sample()
    away, there = [], []
    with bench.managed(size) as pointer:
        bench.device.fill(pointer, 1, size)
        for _ in range(REPEATS + 1):
            bench.device.move_out(pointer, size)
            away.append(_timed(lambda: bench.device.move_in(pointer, size)))
            there.append(_timed(lambda: bench.device.move_in(pointer, size)))
    moved, resident = median(away[1:]), median(there[1:])
    expected = f"at most {CHEAP:.0%} of the time"
    seen = f"{size >> 20} MiB: {moved * 1e6:.0f} us to move, {resident * 1e6:.0f} us when there already"
    figures = {"bytes": float(size), "move_seconds": moved, "resident_seconds": resident}
    if not bench.is_gh200:
        return Answer("resident_is_cheap", NOT_TESTED, expected, f"{seen}; not judged: no GH200", figures)
    return judged("resident_is_cheap", resident <= CHEAP * moved, expected, seen, **figures)


def _timed(step: Callable[[], None]) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began
