"""The pieces an arena is made of: the shared byte limit, blocks of memory, and the tensors held in them."""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch

from ..memory.cuda_bytes import cuda_bytes
from ..memory.driver import CudaError, Driver, ManagedRange
from ..memory.one_copy import as_seen
from ..memory.pages import covering_pages

_cuda_lock = threading.Lock()


class ArenaFull(Exception):
    """There is no room for an entry; the message says which bound was met."""


class CacheBudget:
    """The bytes several arenas may have together: a limit of their own, and what torch's pools leave of the shared one.

    Packed bytes, padding included. Pools come first: they grow without asking, and `excess` says what caches then give up.
    """

    def __init__(self, limit: int | None, shared: int | None = None, pools: Callable[[], int] = lambda: 0) -> None:
        self._own, self._shared, self._pools = limit, shared, pools
        self.used = 0
        self._lock = threading.Lock()

    @property
    def limit(self) -> int | None:
        bounds = [bound for bound in (self._own, self._left()) if bound is not None]
        return min(bounds) if bounds else None

    def _left(self) -> int | None:
        return None if self._shared is None else max(0, self._shared - self._pools())

    def take(self, size: int) -> None:
        with self._lock:
            limit = self.limit
            if limit is not None and self.used + size > limit:
                pools = self._pools()
                beside = f" beside {pools} of torch's pools" if pools else ""
                raise ArenaFull(f"the limit of {limit} bytes{beside} is reached ({self.used} used, {size} wanted)")
            self.used += size

    def excess(self) -> int:
        """Bytes that are held although torch's pools have their room by now."""
        left = self._left()
        return 0 if left is None else max(0, self.used - left)

    def give_back(self, size: int) -> None:
        with self._lock:
            self.used -= size


class Block:
    """One allocation; `buffer` is what tensors refer to, so its reference count tells whether any is still out."""

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

    @property
    def in_use(self) -> bool:
        return sys.getrefcount(self.buffer) > 2  # this object's own reference and the call's argument

    def may_move(self, pointer: int, size: int) -> bool:
        start, covered = covering_pages(pointer, size, ManagedRange(self.pointer, self.size))
        return start + covered <= self.pointer + self.share

    def free(self) -> None:
        if self.driver is not None:
            self.driver.free(self.pointer, self.device)

    def free_after_the_last_tensor(self) -> None:
        if self.driver is not None:
            # Not at the end of the process, where it goes anyway and a thread may still be reading.
            weakref.finalize(self.buffer, _freed_quietly, self.driver, self.pointer, self.device).atexit = False


def _freed_quietly(driver: Driver, pointer: int, device: int) -> None:
    with suppress(CudaError):
        driver.free(pointer, device)


@dataclass(frozen=True, slots=True)
class Reserved:
    """A place in a block, or no place at all for a tensor without bytes."""

    block: Block | None
    offset: int
    span: int

    @property
    def buffer(self) -> ctypes.Array[ctypes.c_ubyte]:
        assert self.block is not None
        return self.block.buffer


NO_BYTES = Reserved(None, 0, 0)


class Slot:
    """One held tensor: its view, the version it had when nothing had written to it, and its twins on the GPU.

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
                    flat = cuda_bytes(block.buffer, block.pointer + self.offset, self.span, block.device)
                    cuda = as_seen(flat, self.tensor)
                    self.cuda_version, self.cuda = cuda._version, cuda
        return self.cuda

    def keep(self, resident: torch.Tensor) -> None:
        self.resident_version, self.resident = resident._version, resident

    @property
    def written_to(self) -> bool:
        cuda, resident = self.cuda, self.resident
        return (
            self.tensor._version != self.version
            or (cuda is not None and cuda._version != self.cuda_version)
            or (resident is not None and resident._version != self.resident_version)
        )


def holdable(tensor: torch.Tensor) -> bool:
    """Whether a view of bytes can stand for this tensor without any difference to its user."""
    plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and tensor.device.type == "cpu"
    return plain and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
