"""Which memory a staging thread fills: the CPUs' own (LPDDR on Grace), never a GPU's that shows up as a NUMA node."""

from __future__ import annotations

import ctypes
import os
import platform
from pathlib import Path

SYSFS = Path("/sys/devices/system/node")
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_MPOL_BIND = 2


def nodes_without_cpus(sysfs: Path = SYSFS) -> set[int]:
    """Such as a GPU's memory."""
    return listed(sysfs / "has_memory") - listed(sysfs / "has_cpu")


def memory_of(node: int, field: str, sysfs: Path = SYSFS) -> int:
    """Bytes of one field (`MemTotal`, `MemFree`) of a node; its lines begin with `Node 0`."""
    try:
        lines = (sysfs / f"node{node}/meminfo").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[-2]) * 1024 for line in lines if line.split()[2:3] == [f"{field}:"]), 0)


def file_cache_of(node: int, sysfs: Path = SYSFS) -> int:
    """Bytes of a node that the kernel can reclaim from files."""
    return sum(memory_of(node, field, sysfs) for field in ("Active(file)", "Inactive(file)"))


def keep_to_cpu_memory(sysfs: Path = SYSFS) -> str:
    """Binds this thread's new pages to nodes that have CPUs, the nearest first; returns what went wrong."""
    return bind_thread(listed(sysfs / "has_cpu")) if nodes_without_cpus(sysfs) else ""


def bind_thread(nodes: set[int]) -> str:
    """Binds new pages of this thread to the nodes; returns what went wrong."""
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        return f"no memory policy call known for {platform.machine()}"
    words = (ctypes.c_ulong * (max(nodes) // 64 + 1))()
    for node in nodes:
        words[node // 64] |= 1 << (node % 64)
    libc = ctypes.CDLL(None, use_errno=True)
    # The kernel reads one bit less than the given size.
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
