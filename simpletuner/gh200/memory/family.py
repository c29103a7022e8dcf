"""What the machine is, by attributes the driver reports, and what follows from it; nothing is decided by a name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache

from .driver import DeviceAttribute, Driver, load_driver

NUMA_NODE = 1  # the driver's value of NUMA_CONFIG for memory that is a node of its own
CDMM = "this driver keeps HBM to itself (CDMM): a page in it cannot be read by the CPU, and ordinary memory does not move there"
ONE_POOL = "CPU and GPU share one memory pool: there is no GPU memory to move pages to"


class Family(str, Enum):  # noqa: UP042 - the diagnostic runs on Python 3.10
    """Which memory a GPU has, and whether it shares page tables with the CPU."""

    COHERENT = "coherent with its own memory"  # GH200, GB200, GB300
    ONE_POOL = "one memory pool"  # GB10 (DGX Spark), Thor
    DISCRETE = "discrete"
    NONE = "no GPU"

    def __str__(self) -> str:
        """Its text, as a StrEnum has it."""
        return str(self.value)


@dataclass(frozen=True)
class Platform:
    """One GPU and its memory; `hbm_node` is the NUMA node of its own memory, None where that is no node."""

    family: Family
    hbm_node: int | None = None

    @property
    def one_pool(self) -> bool:
        """Whether all memory of the GPU is the CPU's."""
        return self.family is Family.ONE_POOL

    @property
    def coherent(self) -> bool:
        """Whether the GPU reads all memory of a process beside its own."""
        return self.family is Family.COHERENT

    @property
    def memory_mode(self) -> str:
        """How the GPU's own memory shows up in the kernel: `NUMA` or `CDMM`; `none` where neither applies."""
        return "none" if not self.coherent else "CDMM" if self.hbm_node is None else "NUMA"

    @property
    def stays_on_the_cpu(self) -> str:
        """Why pages gain nothing by moving to the GPU; empty where they may."""
        return ONE_POOL if self.one_pool else CDMM if self.memory_mode == "CDMM" else ""


def platform_of(attributes: Mapping[str, int]) -> Platform:
    """By attributes as `DeviceAttribute` names them, in lower case; an absent one is 0."""
    if attributes.get("integrated"):
        return Platform(Family.ONE_POOL)
    if not attributes.get("pageable_memory_access_uses_host_page_tables"):
        return Platform(Family.DISCRETE)
    node = attributes.get("numa_id", -1) if attributes.get("numa_config") == NUMA_NODE else -1
    return Platform(Family.COHERENT, node if node >= 0 else None)


_DECIDING = (
    DeviceAttribute.INTEGRATED,
    DeviceAttribute.PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
    DeviceAttribute.NUMA_CONFIG,
    DeviceAttribute.NUMA_ID,
)


@cache
def platform(device: int) -> Platform:
    """Of a device of CUDA's; raises CudaError where the driver fails."""
    driver = load_driver()
    if not isinstance(driver, Driver):
        return Platform(Family.NONE)
    return platform_of({name.name.lower(): driver.device_attribute(name, device) for name in _DECIDING})
