"""Where pages lie that the CPU touched first: managed ones by the GPU's free memory, ordinary ones by the kernel's word."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path

from ...memory.driver import Advice, Place
from ..device import ordinary
from ..result import gb
from .bench import Bench
from .claims import NOT_TESTED, Answer, judged

NUMA_MAPS = Path("/proc/self/numa_maps")


def first_touch(bench: Bench) -> Iterator[Answer]:
    yield _managed(bench)
    yield _ordinary(bench)


def _managed(bench: Bench) -> Answer:
    size = bench.sample()
    with bench.managed(size) as pointer:
        bench.driver.advise(pointer, size, Advice.SET_PREFERRED_LOCATION, Place(bench.ordinal), bench.ordinal)
        before, _ = bench.device.memory()
        ctypes.memset(pointer, 1, size)
        grown = before - bench.device.memory()[0]
    in_hbm = grown >= size // 2
    expected = "in HBM, its preferred location" if bench.mode == "NUMA" else "with the CPU: it cannot map HBM here"
    seen = f"mode {bench.mode}: HBM in use grew by {gb(max(0, grown))} of {gb(size)}"
    return judged("first_touch_managed", in_hbm == (bench.mode == "NUMA"), expected, seen, grown=grown, size=size)


def _ordinary(bench: Bench) -> Answer:
    expected = "a node with CPUs"
    with ordinary(bench.sample()) as pointer:
        nodes = nodes_of(pointer)
    if nodes is None:
        return Answer("first_touch_ordinary", NOT_TESTED, expected, "the kernel has no /proc/self/numa_maps")
    with_cpus = {node.number for node in bench.facts.host.nodes if node.cpus}
    seen = ", ".join(f"{pages} pages on node {node}" for node, pages in nodes.items()) or "no page on any node"
    return judged("first_touch_ordinary", bool(nodes) and set(nodes) <= with_cpus, expected, seen)


def nodes_of(pointer: int) -> dict[int, int] | None:
    """Pages per NUMA node of the mapping around a pointer; None where the kernel does not tell."""
    try:
        lines = NUMA_MAPS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    below = [(int(line.split(" ", 1)[0], 16), line) for line in lines]
    around = max(((start, line) for start, line in below if start <= pointer), default=(0, ""))
    return {int(node): int(pages) for node, pages in re.findall(r"\bN(\d+)=(\d+)", around[1])}
