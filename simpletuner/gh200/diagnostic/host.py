"""Facts about the host: processor, kernel, NUMA nodes, memory and its limits; all of it read below one root."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..memory.limits import Cgroup, Limit, cgroups, memory_limits
from ..memory.numa import listed, memory_of
from .machine import Machine, found_in

UNLIMITED = -1


@dataclass(frozen=True)
class Node:
    """A NUMA node; one with memory and no CPU is usually a GPU's."""

    number: int
    cpus: int
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class Host:
    """None where the machine does not say."""

    architecture: str
    kernel: str
    page_bytes: int
    cpus: int
    cpu_nodes_used: tuple[int, ...]
    transparent_hugepages: str | None
    numa_balancing: str | None
    init_on_alloc: str | None
    nodes: tuple[Node, ...]
    memory_total_bytes: int
    memory_available_bytes: int
    gpu_nodes_total_bytes: int
    gpu_nodes_free_bytes: int
    groups: tuple[Cgroup, ...]
    rooms: tuple[Limit, ...]
    memlock_bytes: int | None
    shm_total_bytes: int | None
    shm_free_bytes: int | None

    @property
    def cpu_memory_bytes(self) -> int:
        """RAM of the processors: in NUMA mode the kernel counts the GPU's memory as its own."""
        return max(0, self.memory_total_bytes - self.gpu_nodes_total_bytes)

    @property
    def cpu_available_bytes(self) -> int:
        """Available bytes without the GPU's nodes."""
        return max(0, self.memory_available_bytes - self.gpu_nodes_free_bytes)

    @property
    def room_bytes(self) -> int:
        """What the host side can give to one more allocation; headroom is left."""
        return min((limit.bytes for limit in self.rooms), default=0)


def read_host(machine: Machine) -> Host:
    """Read /proc and /sys."""
    root = machine.root
    nodes_directory, cgroup = root / "sys/devices/system/node", root / "sys/fs/cgroup"
    total, available = (
        int(found_in(root / "proc/meminfo", rf"^{name}:\s+(\d+) kB$") or 0) * 1024
        for name in ("MemTotal", "MemAvailable")
    )
    # Without them the machine says nothing of its memory, and there is nothing to be bounded by.
    limits = memory_limits(proc=root / "proc", cgroup=cgroup, nodes=nodes_directory) if total and available else ()
    nodes = _nodes(nodes_directory)
    gpu_nodes = [node for node in nodes if not node.cpus and node.total_bytes]
    memlock = found_in(root / "proc/self/limits", r"^Max locked memory\s+(\w+)")
    shm = machine.filesystem(root / "dev/shm")
    return Host(
        architecture=machine.architecture,
        kernel=machine.kernel,
        page_bytes=machine.page_size,
        cpus=len(machine.cpus),
        cpu_nodes_used=_nodes_used(nodes_directory, nodes, machine.cpus),
        transparent_hugepages=found_in(root / "sys/kernel/mm/transparent_hugepage/enabled", r"\[(\w+)\]"),
        numa_balancing=found_in(root / "proc/sys/kernel/numa_balancing", r"(\S+)"),
        init_on_alloc=found_in(root / "proc/cmdline", r".*\binit_on_alloc=(\S+)"),
        nodes=nodes,
        memory_total_bytes=total,
        memory_available_bytes=available,
        gpu_nodes_total_bytes=sum(node.total_bytes for node in gpu_nodes),
        gpu_nodes_free_bytes=sum(node.free_bytes for node in gpu_nodes),
        groups=tuple(sorted(cgroups(root / "proc", cgroup), key=lambda group: group.limit_bytes)),
        rooms=tuple(limits),
        memlock_bytes=UNLIMITED if memlock == "unlimited" else int(memlock) if memlock else None,
        shm_total_bytes=shm[0] if shm else None,
        shm_free_bytes=shm[1] if shm else None,
    )


def _nodes(directory: Path) -> tuple[Node, ...]:
    return tuple(
        Node(
            number,
            len(listed(directory / f"node{number}/cpulist")),
            memory_of(number, "MemTotal", directory),
            memory_of(number, "MemFree", directory),
        )
        for number in sorted(listed(directory / "online"))
    )


def _nodes_used(directory: Path, nodes: tuple[Node, ...], cpus: frozenset[int]) -> tuple[int, ...]:
    return tuple(node.number for node in nodes if cpus & listed(directory / f"node{node.number}/cpulist"))
