"""How much of the machine others used while a run was timed, from the kernel's own accounts."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
PAUSE = 0.5


@dataclass(frozen=True)
class Sample:
    """Processor time in clock ticks, added up since boot (machine) and since its start (run)."""

    when: float
    total: int
    idle: int
    own: int


class LoadWatch:
    """Called while a run goes on; remembers where the accounts stood."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    def look(self, group: int) -> None:
        """Take a sample, not too often."""
        now = time.time()
        if not self.samples or now - self.samples[-1].when >= PAUSE:
            total, idle = _machine()
            self.samples.append(Sample(now, total, idle, _of_group(group)))

    def share_of_others(self, first: float, last: float) -> float:
        """Between two times: what neither the run nor idleness had, of all processor time."""
        inside = [sample for sample in self.samples if first <= sample.when <= last]
        if len(inside) < 2:
            return 0.0
        start, end = inside[0], inside[-1]
        total = end.total - start.total
        others = total - (end.idle - start.idle) - (end.own - start.own)
        return min(0.99, max(0.0, others / total)) if total > 0 else 0.0


def _machine() -> tuple[int, int]:
    """All processor time, a hypervisor's share included; and the idle part, waiting for disks included."""
    fields = [int(field) for field in (PROC / "stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]]
    return sum(fields), fields[3] + fields[4]


def _of_group(group: int) -> int:
    return sum(_ticks(entry, group) for entry in PROC.iterdir() if entry.name.isdigit())


def _ticks(entry: Path, group: int) -> int:
    try:
        # The name in parentheses may hold anything, spaces and parentheses included.
        fields = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12]) if int(fields[2]) == group else 0
