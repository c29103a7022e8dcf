"""The words of the CUDA driver this fork uses: places, advice, attributes, and what an error means."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from ..errors import GH200Error

# After one of these no later call on the device can succeed, so callers stop asking.
GONE = frozenset(
    f"CUDA_ERROR_{name}"
    for name in (
        "DEINITIALIZED", "NO_DEVICE", "DEVICE_UNAVAILABLE", "ECC_UNCORRECTABLE", "CONTEXT_IS_DESTROYED",
        "ILLEGAL_ADDRESS", "HARDWARE_STACK_ERROR", "LAUNCH_FAILED", "SYSTEM_NOT_READY", "UNKNOWN",
    )
)  # fmt: skip


class DriverUnavailable(GH200Error):
    """There is no CUDA driver this process can use."""


class BindingsMissing(DriverUnavailable):
    """Nobody can say whether there is a driver: what would ask it is not installed."""


class CudaError(GH200Error):
    """A driver call that did not return success; `name` is CUDA's own name for the error."""

    def __init__(self, call: str, name: str) -> None:
        self.call, self.name = call, name
        super().__init__(f"{call} returned {name}")

    @property
    def device_gone(self) -> bool:
        """Whether no further call can succeed."""
        return self.name in GONE


class Advice(IntEnum):
    """Values of CUmem_advise."""

    SET_READ_MOSTLY = 1
    UNSET_READ_MOSTLY = 2
    SET_PREFERRED_LOCATION = 3
    SET_ACCESSED_BY = 5


class DeviceAttribute(IntEnum):
    """Values of CUdevice_attribute."""

    INTEGRATED = 18
    MANAGED_MEMORY = 83
    PAGEABLE_MEMORY_ACCESS = 88
    CONCURRENT_MANAGED_ACCESS = 89
    PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES = 100
    DIRECT_MANAGED_MEM_ACCESS_FROM_HOST = 101
    NUMA_CONFIG = 130
    NUMA_ID = 131
    HOST_NUMA_ID = 134


class RangeAttribute(IntEnum):
    """Values of CUmem_range_attribute."""

    READ_MOSTLY = 1
    PREFERRED_LOCATION = 2
    LAST_PREFETCH_LOCATION = 4


@dataclass(frozen=True)
class Place:
    """A GPU by its ordinal, or the host where `device` is None."""

    device: int | None = None


HOST = Place()


@dataclass(frozen=True)
class ManagedRange:
    """The managed allocation around a pointer."""

    base: int
    size: int
