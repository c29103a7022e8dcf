"""Tensors in CPU memory, worked on in HBM: copied in and out by streams of their own while others are worked on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

ALIGNMENT = 512


@dataclass(frozen=True)
class StagedTensor:
    """A tensor at home in CPU memory; `show` lets the work see another one in its place."""

    home: torch.Tensor
    show: Callable[[torch.Tensor], None]
    written: bool = True


@dataclass(frozen=True)
class StagedWork:
    """Some work, and the tensors it needs in HBM."""

    slots: Sequence[StagedTensor]
    work: Callable[[], None]


def staged_bytes(tensor: torch.Tensor) -> int:
    """What a tensor takes of a staging buffer."""
    return -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT


class Staging:
    """Two buffers in HBM: one is worked on while the other is filled or emptied."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: list[torch.Tensor] = []
        self._inward, self._outward = torch.cuda.Stream(device), torch.cuda.Stream(device)
        self._ready: list[Any] = [None, None]
        self._free: list[Any] = [None, None]

    @property
    def bytes(self) -> int:
        """HBM that the buffers take."""
        return sum(buffer.numel() for buffer in self._buffers)

    def run(self, jobs: Sequence[StagedWork]) -> None:
        """All of them in order; afterwards the current stream has everything at home."""
        if not jobs:
            return
        self.reserve(max(sum(staged_bytes(slot.home) for slot in job.slots) for job in jobs))
        main = torch.cuda.current_stream(self._device)
        self._inward.wait_stream(main)
        self._outward.wait_stream(main)
        staged = [self._copy_in(jobs[0], 0)]
        for number, job in enumerate(jobs):
            if number + 1 < len(jobs):
                staged.append(self._copy_in(jobs[number + 1], (number + 1) % 2))
            main.wait_event(self._ready[number % 2])
            self._work(job, staged[number])
            self._outward.wait_event(main.record_event())
            self._copy_out(job, staged[number], number % 2)
        main.wait_stream(self._outward)

    def reserve(self, size: int) -> None:
        """Buffers of at least this size; early, while HBM is in one piece."""
        if not self._buffers or self._buffers[0].numel() < size:
            self._buffers = []
            self._buffers = [torch.empty(size, dtype=torch.uint8, device=self._device) for _ in range(2)]
            self._free = [None, None]

    def _copy_in(self, job: StagedWork, which: int) -> list[torch.Tensor]:
        if self._free[which] is not None:
            self._inward.wait_event(self._free[which])
        staged, offset = [], 0
        for slot in job.slots:
            size = slot.home.numel() * slot.home.element_size()
            flat = self._buffers[which][offset : offset + size].view(slot.home.dtype)
            staged.append(flat.as_strided(slot.home.shape, slot.home.stride()))
            offset += staged_bytes(slot.home)
        with torch.cuda.stream(self._inward):
            for slot, tensor in zip(job.slots, staged, strict=True):
                tensor.copy_(slot.home, non_blocking=True)
        self._ready[which] = self._inward.record_event()
        return staged

    def _work(self, job: StagedWork, staged: list[torch.Tensor]) -> None:
        for slot, tensor in zip(job.slots, staged, strict=True):
            slot.show(tensor)
        try:
            job.work()
        finally:
            for slot in job.slots:
                slot.show(slot.home)

    def _copy_out(self, job: StagedWork, staged: list[torch.Tensor], which: int) -> None:
        with torch.cuda.stream(self._outward):
            for slot, tensor in zip(job.slots, staged, strict=True):
                if slot.written:
                    slot.home.copy_(tensor, non_blocking=True)
        self._free[which] = self._outward.record_event()


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no gaps and no overlaps, so that its strides fit a buffer of its size."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True
