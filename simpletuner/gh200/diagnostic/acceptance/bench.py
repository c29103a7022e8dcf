"""What every part of an acceptance run is handed: the GPU, the machine, how much memory it may take, how long it has."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ...memory.driver import DeviceAttribute, Driver
from ...memory.hbm import NUMA_NODE
from ..device import Device, ProgressLine
from ..facts import Facts
from ..host import read_host
from ..machine import Machine
from ..status import gb
from .claims import NOT_TESTED, Answer, NotTested, judged
from .trainings import Trained, Trainer

SAMPLE = 256 << 20
MODEL = "GH200"


@dataclass
class Bench:
    """`deadline` is on the monotonic clock, `hbm` all bytes of the GPU; `trainer` is None where nothing can train, and `untrained` says why."""

    facts: Facts
    machine: Machine
    device: Device
    tell: ProgressLine
    scale: float
    deadline: float
    hbm: int
    trainer: Trainer | None = None
    untrained: str = ""
    large: bool = False
    trained: list[Trained] = field(default_factory=list)

    @property
    def driver(self) -> Driver:
        """The CUDA driver."""
        return self.device.driver

    @property
    def ordinal(self) -> int:
        """The device under test."""
        return self.device.ordinal

    @property
    def mode(self) -> str:
        """As the driver reports it: `NUMA`, `CDMM`, or `none` where CPU and GPU share no page tables."""
        if not self.attribute(DeviceAttribute.PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES):
            return "none"
        return "NUMA" if self.attribute(DeviceAttribute.NUMA_CONFIG) == NUMA_NODE else "CDMM"

    def judged_speed(self, claim: str, right: bool, expected: str, seen: str, **measurements: float) -> Answer:
        """Only on the model on which what is known of speeds was measured."""
        if self.facts.grace and MODEL in self.driver.device_name(self.ordinal):
            return judged(claim, right, expected, seen, **measurements)
        return Answer(claim, NOT_TESTED, expected, f"{seen}; not judged: no GH200", measurements)

    def attribute(self, attribute: DeviceAttribute) -> int:
        """One attribute of the device."""
        return self.driver.device_attribute(attribute, self.ordinal)

    def available(self) -> int:
        """Bytes the host can give now."""
        return read_host(self.machine).room_bytes

    def left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()

    def sample(self) -> int:
        """Bytes one test may take, which is never much."""
        host = self.available()
        size = self.device.sample(SAMPLE, host)
        if not size:
            raise NotTested(f"not enough free memory: {gb(self.device.memory()[0])} on the GPU, {gb(host)} on the host")
        return size

    @contextmanager
    def managed(self, size: int) -> Iterator[int]:
        """A managed allocation, freed at the end of the block."""
        if not self.device.shares_managed_memory:
            raise NotTested("this GPU has no concurrent managed access")
        with self.device.managed(size) as pointer:
            yield pointer
