"""All facts of one diagnosis, in the shape the checks and the report read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..preflight.config import Config
from .allocation import Allocation
from .bandwidth import Bandwidth
from .gpu import Gpus, read_gpus
from .host import Host, read_host
from .machine import Machine
from .preflighted import Preflighted
from .software import Software, read_software

GRACE = "aarch64"


@dataclass(frozen=True)
class Facts:
    """The last four are None where they were not asked for."""

    host: Host
    gpus: Gpus
    software: Software
    config: Config | None = None
    preflight: Preflighted | None = None
    allocation: Allocation | None = None
    bandwidth: Bandwidth | None = None

    @property
    def grace(self) -> bool:
        """Whether the host can be the CPU half of a superchip."""
        return self.host.architecture == GRACE

    @property
    def memory_mode(self) -> str:
        """How the GPU's memory shows up in the kernel: `NUMA`, `CDMM`, `unknown`, or `none` without coherence."""
        coherent = [gpu for gpu in self.gpus.devices if gpu.coherent]
        if not coherent:
            return "none" if all(gpu.told for gpu in self.gpus.devices) else "unknown"
        if any(gpu.numa_node is not None for gpu in coherent):
            return "NUMA"
        return "unknown" if any(not node.cpus and node.total_bytes for node in self.host.nodes) else "CDMM"


def read_facts(machine: Machine, say: Callable[[str], None]) -> Facts:
    """What can be told without touching the GPU."""
    say("asking the machine")
    return Facts(read_host(machine), read_gpus(machine), read_software(machine))
