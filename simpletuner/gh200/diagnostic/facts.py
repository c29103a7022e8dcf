"""All facts of one diagnosis, in the shape the checks and the report read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..preflight.config import Config
from .allocation import Allocation
from .bandwidth import Bandwidth
from .gpu import Gpus, read_gpus
from .host import Host, read_host
from .machine import Machine
from .software import Software, read_software

try:
    from ..preflight.check import preflight
except ImportError as error:
    UNASKED = f"{error.name} is not installed in this interpreter"
else:
    UNASKED = ""

GRACE = "aarch64"


@dataclass(frozen=True)
class Preflighted:
    """`unasked` says why preflight did not run."""

    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    not_checked: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    unasked: str = ""


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
    def one_pool(self) -> bool:
        """Whether GPU and CPU have one memory."""
        return any(gpu.platform.one_pool for gpu in self.gpus.devices)

    @property
    def memory_mode(self) -> str:
        """How the GPU's memory shows up in the kernel: `NUMA`, `CDMM`, `unknown`, or `none` where it has none or is not coherent."""
        coherent = [gpu for gpu in self.gpus.devices if gpu.coherent and not gpu.platform.one_pool]
        if not coherent:
            return "none" if all(gpu.reports_coherence for gpu in self.gpus.devices) else "unknown"
        if any(gpu.numa_node is not None for gpu in coherent):
            return "NUMA"
        return "unknown" if any(not node.cpus and node.total_bytes for node in self.host.nodes) else "CDMM"


def read_facts(machine: Machine, say: Callable[[str], None]) -> Facts:
    """What can be read without touching the GPU."""
    say("asking the machine")
    return Facts(read_host(machine), read_gpus(machine), read_software(machine))


def ask_preflight(
    path: Path, config: Mapping[str, object], processes: int, environ: Mapping[str, str], gpu_bytes: int
) -> Preflighted:
    """The preflight result for a config."""
    if UNASKED:
        return Preflighted(unasked=UNASKED)
    report = preflight(path, config, processes, environ, gpu=lambda: gpu_bytes)
    values = tuple(f"{name}: {text}" for name, text in report.facts.get("told", {}).items())
    return Preflighted(tuple(report.problems), tuple(report.warnings), tuple(report.not_checked), values)
