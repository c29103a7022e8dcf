"""What every part of an acceptance run is handed: the GPU, the machine, how much memory it may take, how long it has."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ...memory.driver import DeviceAttribute, Driver
from ...memory.family import Platform, platform
from ..device import Device, ProgressLine
from ..facts import Facts
from ..host import read_host
from ..machine import Machine
from ..status import gb
from .claims import NOT_TESTED, Answer, NotTested, judged
from .trainings import Trained, Trainer

SAMPLE = 256 << 20
HOPPER = 9  # the compute capability of the machines on which published speeds were measured


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
    def platform(self) -> Platform:
        """What the machine is."""
        return platform(self.ordinal)

    @property
    def mode(self) -> str:
        """As the driver reports it: `NUMA`, `CDMM`, or `none` where CPU and GPU share no page tables."""
        return self.platform.memory_mode

    def judged_speed(self, claim: str, right: bool, expected: str, seen: str, **measurements: float) -> Answer:
        """Only on the family on which what is known of speeds was measured."""
        gpu = next((gpu for gpu in self.facts.gpus.devices if gpu.cuda_number == self.ordinal), None)
        capability = gpu.compute_capability if gpu is not None else None
        if self.facts.grace and self.platform.coherent and capability is not None and capability[0] == HOPPER:
            return judged(claim, right, expected, seen, **measurements)
        return Answer(claim, NOT_TESTED, expected, f"{seen}; not judged: no Hopper with coherent memory", measurements)

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
