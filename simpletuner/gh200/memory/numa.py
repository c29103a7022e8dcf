"""Which memory a staging thread fills: the CPUs' own (LPDDR on Grace), never a GPU's that shows up as a NUMA node."""

from __future__ import annotations

import ctypes
import os
import platform
from pathlib import Path

SYSFS = Path("/sys/devices/system/node")
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_MPOL_BIND = 2


def cpu_node(sysfs: Path = SYSFS) -> int | None:
    """The node all CPUs of this process belong to; None where it may run on several or the machine has one."""
    nodes = sorted(listed(sysfs / "has_cpu"))
    if len(nodes) < 2:
        return None
    mine = os.sched_getaffinity(0)
    holding = [node for node in nodes if mine & listed(sysfs / f"node{node}/cpulist")]
    return holding[0] if len(holding) == 1 else None


def nodes_without_cpus(sysfs: Path = SYSFS) -> set[int]:
    return listed(sysfs / "has_memory") - listed(sysfs / "has_cpu")


def memory_of(node: int, field: str, sysfs: Path = SYSFS) -> int:
    """Bytes of one field (`MemTotal`, `MemFree`) of a node; its lines begin with `Node 0`."""
    try:
        lines = (sysfs / f"node{node}/meminfo").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[-2]) * 1024 for line in lines if line.split()[2:3] == [f"{field}:"]), 0)


def keep_to_cpu_memory(sysfs: Path = SYSFS) -> str:
    """Binds this thread's new pages to nodes that have CPUs; returns what went wrong, empty when nothing did."""
    if not nodes_without_cpus(sysfs):
        return ""
    node = cpu_node(sysfs)
    return bind_thread({node} if node is not None else listed(sysfs / "has_cpu"))


def bind_thread(nodes: set[int]) -> str:
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        return f"no memory policy call known for {platform.machine()}"
    words = (ctypes.c_ulong * (max(nodes) // 64 + 1))()
    for node in nodes:
        words[node // 64] |= 1 << (node % 64)
    libc = ctypes.CDLL(None, use_errno=True)
    # The kernel reads one bit less than it is told.
    if libc.syscall(number, _MPOL_BIND, words, ctypes.c_ulong(len(words) * 64 + 1)) == 0:
        return ""
    return f"set_mempolicy: {os.strerror(ctypes.get_errno())}"


def listed(path: Path) -> set[int]:
    """A kernel list such as `0-3,8`."""
    try:
        text = path.read_text().strip()
    except OSError:
        return set()
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found
