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

from ..memory.driver import CudaError, Driver, ManagedRange
from ..memory.pages import covering_pages

ALIGNMENT = 256
_cuda_lock = threading.Lock()


class ArenaFull(Exception):
    """There is no room for an entry; the message says which bound was met."""


class CacheBudget:
    """The byte limit several arenas share; counts packed bytes, padding included. `others` are bytes that come first."""

    def __init__(self, limit: int | None, others: Callable[[], int] = lambda: 0) -> None:
        self.limit, self.used = limit, 0
        self._others = others
        self._lock = threading.Lock()

    def take(self, size: int) -> None:
        with self._lock:
            others = self._others()
            if self.limit is not None and others + self.used + size > self.limit:
                beside = f" and {others} by torch's pools" if others else ""
                raise ArenaFull(f"the limit of {self.limit} bytes is reached ({self.used} used{beside}, {size} wanted)")
            self.used += size

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


def aligned(span: int) -> int:
    return -(-span // ALIGNMENT) * ALIGNMENT


class Slot:
    """One held tensor: its view, the version it had when nothing had written to it, and its twin on the GPU."""

    __slots__ = ("block", "cuda", "cuda_version", "finite", "moved", "offset", "span", "tensor", "version")

    def __init__(self, tensor: torch.Tensor, block: Block | None, offset: int, span: int) -> None:
        self.tensor, self.block, self.offset, self.span = tensor, block, offset, span
        self.version = tensor._version
        self.finite: bool | None = None
        self.moved = False
        self.cuda: torch.Tensor | None = None
        self.cuda_version = 0

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
                    source = CudaBytes(self.block, self.offset, self.span)
                    flat = torch.as_tensor(source, device=f"cuda:{self.block.device}")
                    cuda = flat.view(self.tensor.dtype).as_strided(self.tensor.shape, self.tensor.stride())
                    self.cuda_version, self.cuda = cuda._version, cuda
        return self.cuda

    @property
    def written_to(self) -> bool:
        cuda = self.cuda
        return self.tensor._version != self.version or (cuda is not None and cuda._version != self.cuda_version)


class CudaBytes:
    """Managed bytes as torch's CUDA importer wants to see them; keeps the block's buffer alive."""

    def __init__(self, block: Block, offset: int, span: int) -> None:
        self._buffer = block.buffer
        self.__cuda_array_interface__ = {
            "shape": (span,),
            "typestr": "|u1",
            "data": (block.pointer + offset, False),
            "version": 3,
            "strides": None,
        }


def holdable(tensor: torch.Tensor) -> bool:
    """Whether a view of bytes can stand for this tensor without any difference to its user."""
    plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and tensor.device.type == "cpu"
    return plain and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
