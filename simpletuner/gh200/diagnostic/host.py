"""Facts about the host: processor, kernel, NUMA nodes, memory and its limits; all of it read below one root."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ..memory.limits import Group, Limit, control_groups, memory_limits
from ..memory.numa import listed, memory_of
from .machine import Machine

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
    groups: tuple[Group, ...]
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
        return max(0, self.memory_available_bytes - self.gpu_nodes_free_bytes)

    @property
    def room_bytes(self) -> int:
        """What the host side can give to one more allocation; headroom is left."""
        return min((room.bytes for room in self.rooms), default=0)


def read_host(machine: Machine) -> Host:
    root = machine.root
    fields = _meminfo(root / "proc/meminfo")
    nodes = _nodes(root / "sys/devices/system/node")
    gpu_nodes = [node for node in nodes if not node.cpus and node.total_bytes]
    shm = machine.filesystem(root / "dev/shm")
    return Host(
        architecture=machine.architecture,
        kernel=machine.kernel,
        page_bytes=machine.page_size,
        cpus=len(machine.cpus),
        cpu_nodes_used=_nodes_used(root / "sys/devices/system/node", nodes, machine.cpus),
        transparent_hugepages=_chosen(_text(root / "sys/kernel/mm/transparent_hugepage/enabled")),
        numa_balancing=_text(root / "proc/sys/kernel/numa_balancing"),
        init_on_alloc=_boot_option(_text(root / "proc/cmdline"), "init_on_alloc"),
        nodes=nodes,
        memory_total_bytes=fields.get("MemTotal", 0),
        memory_available_bytes=fields.get("MemAvailable", 0),
        gpu_nodes_total_bytes=sum(node.total_bytes for node in gpu_nodes),
        gpu_nodes_free_bytes=sum(node.free_bytes for node in gpu_nodes),
        groups=tuple(
            sorted(control_groups(root / "proc", root / "sys/fs/cgroup"), key=lambda group: group.limit_bytes)
        ),
        rooms=_rooms(root, fields),
        memlock_bytes=_memlock(_text(root / "proc/self/limits")),
        shm_total_bytes=shm[0] if shm else None,
        shm_free_bytes=shm[1] if shm else None,
    )


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def _chosen(text: str | None) -> str | None:
    """The word in brackets of a kernel choice such as `always [madvise] never`."""
    found = re.search(r"\[(\w+)\]", text or "")
    return found[1] if found else None


def _boot_option(command_line: str | None, name: str) -> str | None:
    values = [word.partition("=")[2] for word in (command_line or "").split() if word.startswith(f"{name}=")]
    return values[-1] if values else None


def _meminfo(path: Path) -> dict[str, int]:
    pattern = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)
    return {name: int(size) * 1024 for name, size in pattern.findall(_text(path) or "")}


def _nodes(folder: Path) -> tuple[Node, ...]:
    return tuple(
        Node(
            number,
            len(listed(folder / f"node{number}/cpulist")),
            memory_of(number, "MemTotal", folder),
            memory_of(number, "MemFree", folder),
        )
        for number in sorted(listed(folder / "online"))
    )


def _nodes_used(folder: Path, nodes: tuple[Node, ...], cpus: frozenset[int]) -> tuple[int, ...]:
    return tuple(node.number for node in nodes if cpus & listed(folder / f"node{node.number}/cpulist"))


def _rooms(root: Path, fields: dict[str, int]) -> tuple[Limit, ...]:
    if not {"MemTotal", "MemAvailable"} <= set(fields):
        return ()
    nodes = root / "sys/devices/system/node"
    return tuple(memory_limits(proc=root / "proc", cgroup=root / "sys/fs/cgroup", nodes=nodes))


def _memlock(limits: str | None) -> int | None:
    found = re.search(r"^Max locked memory\s+(\w+)", limits or "", re.MULTILINE)
    if not found:
        return None
    return UNLIMITED if found[1] == "unlimited" else int(found[1])
