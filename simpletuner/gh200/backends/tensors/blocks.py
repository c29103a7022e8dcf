"""The parts of an arena: the shared byte limit, blocks of memory, and the tensors in them."""

from __future__ import annotations

import ctypes
import logging
import mmap
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from ...memory.batch_copy import as_seen, cuda_bytes
from ...memory.driver import CudaError, Driver, ManagedRange
from ...memory.pages import covering_pages

logger = logging.getLogger("gh200.arena")
_cuda_lock = threading.Lock()


class ArenaFull(Exception):
    """An entry does not fit; the message names the bound."""


class CacheBudget:
    """The bytes several arenas may have together: a limit of their own, and what torch's pools leave of the shared one.

    Packed bytes, padding included. Pools have precedence: what they take beyond the bound, caches must free (`excess`).
    """

    def __init__(self, limit: int | None, shared: int | None = None, pools: Callable[[], int] = lambda: 0) -> None:
        self._own, self._shared, self._pools = limit, shared, pools
        self.used = 0
        self._lock = threading.Lock()

    @property
    def limit(self) -> int | None:
        """The tighter of the two bounds now."""
        bounds = [bound for bound in (self._own, self._left()) if bound is not None]
        return min(bounds) if bounds else None

    def _left(self) -> int | None:
        return None if self._shared is None else max(0, self._shared - self._pools())

    def take(self, size: int) -> None:
        """Counts bytes as used; raises ArenaFull."""
        with self._lock:
            limit = self.limit
            if limit is not None and self.used + size > limit:
                pools = self._pools()
                beside = f" beside {pools} of torch's pools" if pools else ""
                raise ArenaFull(f"the limit of {limit} bytes{beside} is reached ({self.used} used, {size} wanted)")
            self.used += size

    def excess(self) -> int:
        """Bytes in use beyond what torch's pools have left by now."""
        left = self._left()
        return 0 if left is None else max(0, self.used - left)

    def give_back(self, size: int) -> None:
        """Counts bytes as free again."""
        with self._lock:
            self.used -= size


class Block:
    """One allocation; `buffer` is what tensors refer to, and gone when none of them is left."""

    def __init__(self, size: int, driver: Driver | None, device: int) -> None:
        self.size, self.driver, self.device = size, driver, device
        self.cursor = self.live = 0
        self.share = 0  # bytes from its beginning that may live in HBM
        if driver is None:
            self._mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            # Most of the cost of filling fresh memory is its page faults; where the kernel has no large pages, nothing changes.
            with suppress(OSError):
                self._mapping.madvise(mmap.MADV_HUGEPAGE)
            self.buffer: ctypes.Array[ctypes.c_ubyte] = (ctypes.c_ubyte * size).from_buffer(self._mapping)
        else:
            self.buffer = (ctypes.c_ubyte * size).from_address(driver.allocate_managed(size, device))
        self.pointer = ctypes.addressof(self.buffer)

    def may_move(self, pointer: int, size: int) -> bool:
        """Whether all pages of a range are in its share of HBM."""
        start, covered = covering_pages(pointer, size, ManagedRange(self.pointer, self.size))
        return start + covered <= self.pointer + self.share

    def free(self) -> bool:
        """Freed when the last tensor that refers to it is gone; whether that was at once."""
        # Not at the end of the process, where it goes anyway and a thread may still be reading.
        freed = weakref.finalize(self.buffer, _freed, self.driver, self.pointer, self.device)
        freed.atexit = False
        del self.buffer
        return not freed.alive


def _freed(driver: Driver | None, pointer: int, device: int) -> None:
    try:
        if driver is not None:
            driver.free(pointer, device)
    except CudaError as error:
        # At exit the driver may have gone first, and has then freed everything itself.
        logger.log(logging.DEBUG if error.device_gone else logging.WARNING, "GH200 arena: %s", error)


@dataclass(frozen=True, slots=True)
class Reserved:
    """A place in a block, which lasts as long as this does; or no place at all for a tensor without bytes."""

    block: Block | None
    buffer: Any
    offset: int
    span: int


NO_BYTES = Reserved(None, None, 0, 0)


class Slot:
    """One cached tensor: its view, the version it had when nothing had written to it, and its twins on the GPU.

    `cuda` is a view of the same bytes, `resident` a copy of them in HBM.
    """

    __slots__ = (
        "block", "cuda", "cuda_version", "finite", "moved", "offset", "resident", "resident_version", "span", "tensor",
        "version",
    )  # fmt: skip

    def __init__(self, tensor: torch.Tensor, block: Block | None, offset: int, span: int) -> None:
        self.tensor, self.block, self.offset, self.span = tensor, block, offset, span
        self.version = tensor._version
        self.finite: bool | None = None
        self.moved = False
        self.cuda: torch.Tensor | None = None
        self.resident: torch.Tensor | None = None
        self.cuda_version = self.resident_version = 0

    @property
    def managed(self) -> bool:
        """Whether it is in managed memory."""
        return self.block is not None and self.block.driver is not None

    @property
    def may_move(self) -> bool:
        """Whether its pages are among those that may live in HBM."""
        return self.block is not None and self.block.may_move(self.block.pointer + self.offset, self.span)

    def pages(self) -> tuple[int, int]:
        """The pages this tensor touches, rounded outward inside its block: what a prefetch moves."""
        assert self.block is not None
        bounds = ManagedRange(self.block.pointer, self.block.size)
        return covering_pages(self.block.pointer + self.offset, self.span, bounds)

    def cuda_view(self) -> torch.Tensor:
        """The same bytes as a CUDA tensor, without a copy; only for managed memory."""
        if self.cuda is None:
            assert self.block is not None
            with _cuda_lock, torch.inference_mode(False), torch.no_grad():
                if self.cuda is None:
                    block = self.block
                    flat = cuda_bytes(self.tensor, block.pointer + self.offset, self.span, block.device)
                    cuda = as_seen(flat, self.tensor)
                    self.cuda_version, self.cuda = cuda._version, cuda
        return self.cuda

    def check_finite(self) -> None:
        """Once: whether it is free of NaN and Inf."""
        if self.finite is None:
            try:
                self.finite = not bool(torch.isnan(self.tensor).any() or torch.isinf(self.tensor).any())
            except NotImplementedError:
                self.finite = False  # a type without the check: left to SimpleTuner's

    def keep(self, resident: torch.Tensor) -> None:
        """Keeps its copy in HBM."""
        self.resident_version, self.resident = resident._version, resident

    @property
    def written_to(self) -> bool:
        """Whether any of its tensors was written to."""
        cuda, resident = self.cuda, self.resident
        return (
            self.tensor._version != self.version
            or (cuda is not None and cuda._version != self.cuda_version)
            or (resident is not None and resident._version != self.resident_version)
        )


def holdable(tensor: torch.Tensor, device: str = "cpu") -> bool:
    """Whether a view of bytes can replace this tensor without any difference to its user."""
    plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and tensor.device.type == device
    return plain and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
