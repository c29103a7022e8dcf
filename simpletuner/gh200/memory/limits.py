"""How much RAM a dataset may take: the operator's limit, free memory, and every cgroup above this process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ..errors import GH200Error
from .numa import SYSFS, file_cache_of, memory_of, nodes_without_cpus

GB = 10**9
_LARGEST_HEADROOM = 8 * GB
# cgroup v1 writes "no limit" as a number near 2**63.
_UNLIMITED = 1 << 60

# "control group" is a value in diagnostic reports since v1.
LimitKind = Literal["machine", "control group", "operator"]


class OverMemoryLimit(GH200Error):
    """The dataset does not fit; raised before the first byte is staged."""


@dataclass(frozen=True)
class Limit:
    """`name` is what the operator knows it by, `kind` who sets it."""

    kind: LimitKind
    name: str
    bytes: int


@dataclass(frozen=True)
class Cgroup:
    """A memory limit of a cgroup above this process; reclaimable is file cache that counts as used."""

    name: str
    limit_bytes: int
    used_bytes: int
    reclaimable_bytes: int

    @property
    def free_bytes(self) -> int:
        """What may still be allocated in it."""
        return max(0, self.limit_bytes - self.used_bytes + self.reclaimable_bytes)


@dataclass(frozen=True)
class _Version:
    """Where a cgroup version keeps its numbers."""

    mount: str
    maximum: str
    current: str
    reclaimable: tuple[str, str]


_V2 = _Version("", "memory.max", "memory.current", ("inactive_file", "active_file"))
_V2_HYBRID = replace(_V2, mount="unified")
_V1 = _Version("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))


def memory_limits(
    memory_limit_gb: float | None = None,
    *,
    proc: Path = Path("/proc"),
    cgroup: Path = Path("/sys/fs/cgroup"),
    nodes: Path = SYSFS,
) -> list[Limit]:
    """Every limit that applies, smallest first. Headroom is left under the system's limits, not the operator's own."""
    on_gpus = nodes_without_cpus(nodes)
    total = _cpu_memory(proc, "MemTotal", sum(memory_of(node, "MemTotal", nodes) for node in on_gpus))
    free = _cpu_memory(
        proc, "MemAvailable", sum(memory_of(node, "MemFree", nodes) + file_cache_of(node, nodes) for node in on_gpus)
    )
    headroom = min(_LARGEST_HEADROOM, total // 10)
    limits = [Limit("machine", "free memory of the machine (MemAvailable, less headroom)", max(0, free - headroom))]
    for group in cgroups(proc, cgroup):
        available = max(0, group.free_bytes - min(headroom, group.free_bytes // 10))
        limits.append(Limit("control group", f"memory limit of the cgroup {group.name} (less headroom)", available))
    if memory_limit_gb is not None:
        limits.append(Limit("operator", "in_memory.memory_limit_gb", int(memory_limit_gb * GB)))
    return sorted(limits, key=lambda limit: limit.bytes)


def format_size(number: float) -> str:
    """In the unit a reader would choose."""
    for unit in ("bytes", "KB", "MB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "bytes" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.3f} GB" if number < 10 else f"{number:.1f} GB"


def over_limit(dataset: str, need: int, limit: Limit, *, estimated: bool, compressed: bool) -> OverMemoryLimit:
    """The rejection, with need, limit and what would help."""
    helps = ['set in_memory.on_limit to "partial" to hold what fits and read the rest from disk']
    if limit.kind == "operator":
        helps.append("raise in_memory.memory_limit_gb")
    else:
        helps.append("free memory, raise the limit of the job or container")
    if not compressed:
        helps.append("in_memory.compression helps with uncompressed files (not with JPEG, PNG, MP4)")
    return OverMemoryLimit(
        f'The dataset "{dataset}" needs {"about " if estimated else ""}{format_size(need)} of RAM, '
        f"{format_size(limit.bytes)} may be used.",
        where=f'dataset "{dataset}", type in_memory',
        why=f"the tightest limit is: {limit.name}",
        fix="; ".join(helps),
    )


def _cpu_memory(proc: Path, field: str, on_gpus: int) -> int:
    """Where a GPU's memory shows up as a NUMA node the kernel counts it as its own, but nothing of ours belongs there."""
    fields = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines())
    return max(0, int(fields[field].split()[0]) * 1024 - on_gpus)


def cgroups(proc: Path, root: Path) -> Iterator[Cgroup]:
    """Those above this process that have a limit, innermost first."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        versions = (_V2, _V2_HYBRID) if number == "0" else (_V1,) if "memory" in controllers.split(",") else ()
        for version in versions:
            yield from _up_the_tree(root, path, version)


def _up_the_tree(root: Path, path: str, version: _Version) -> Iterator[Cgroup]:
    """A group is bound by all above it. Inside a container the path may be the host's: then only the root exists."""
    mount = root / version.mount
    parts = [part for part in path.split("/") if part and part != ".."]
    for depth in range(len(parts), -1, -1):
        directory = mount.joinpath(*parts[:depth])
        maximum, current = _number(directory / version.maximum), _number(directory / version.current)
        if maximum is not None and current is not None and maximum < _UNLIMITED:
            reclaimable = _reclaimable(directory / "memory.stat", version.reclaimable)
            yield Cgroup("/" + "/".join(parts[:depth]), maximum, current, reclaimable)


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _reclaimable(path: Path, fields: tuple[str, str]) -> int:
    """File cache the kernel gives back before it runs out: all of it, as in MemAvailable. It counts as used."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return sum(int(number) for name, number in map(str.split, lines) if name in fields)
