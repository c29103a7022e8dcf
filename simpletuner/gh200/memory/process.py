"""This process in the CPU's memory, as the kernel counts it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class ProcessMemory:
    """Bytes in RAM, and how many of them are in memory that other processes share; file pages are not among those."""

    resident: int
    shared: int


def process_memory(status: Path = STATUS) -> ProcessMemory:
    """Of this process now."""
    fields = dict(line.split(":", 1) for line in status.read_text(encoding="utf-8", errors="replace").splitlines())
    resident, shared = (int(fields.get(name, "0").split()[0]) * 1024 for name in ("VmRSS", "RssShmem"))
    return ProcessMemory(resident, shared)
