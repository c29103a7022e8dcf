"""A pool of torch's caching allocator over managed blocks: for one thread at a time, or for the whole process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..errors import GH200Error
from ..memory.driver import CudaError, Driver
from .blocks import Blocks
from .native_callbacks import callbacks
from .torch_api import CUSTOM_ALLOCATOR, FOR_ALL_THREADS, PRIVATE, PUBLIC

NOWHERE = 0  # cells of functions that are compiled and never called


class PoolsUnsupported(GH200Error):
    """This torch cannot route its allocations to managed memory."""


def check_torch() -> None:
    """Before anything is loaded: every name of torch's that is used here exists, and its own allocator is in charge."""
    absent = [f"torch._C.{name}" for name in PRIVATE if not hasattr(torch._C, name)]
    absent += [f"torch.cuda.{name}" for name in PUBLIC if not hasattr(torch.cuda, name)]
    if absent:
        raise PoolsUnsupported(
            f"torch {torch.__version__} cannot put its allocations into managed memory.",
            why=f"it has no {', '.join(absent)}",
            fix="use the torch of requirements/fork.lock, or set gh200_optimizations.managed_memory to off",
        )
    backend = torch.cuda.get_allocator_backend()
    if backend != "native":
        raise PoolsUnsupported(
            f"managed memory needs torch's own caching allocator, and {backend} is set.",
            where="PYTORCH_CUDA_ALLOC_CONF, or a call of torch.cuda.memory.change_current_allocator",
            why="pools of torch are part of its native allocator",
            fix="unset it, or set gh200_optimizations.managed_memory to off",
        )


def check_compiler(driver: Driver) -> None:
    """Before anything is loaded: the functions that torch calls for a block can be compiled here."""
    try:
        callbacks(driver, NOWHERE, NOWHERE)
    except CudaError:
        raise
    except Exception as error:
        raise PoolsUnsupported(
            "managed memory needs numba, and numba cannot compile what torch's allocator would call.",
            why=f"{type(error).__name__}: {error}",
            fix="use the numba of requirements/fork.lock, or set gh200_optimizations.managed_memory to off",
        ) from error


class TorchPool:
    """Keeps its memory until it is closed; what is still in use then stays until the process ends."""

    def __init__(self, blocks: Blocks, device: int) -> None:
        self.blocks, self._device = blocks, device
        allocator = getattr(torch._C, CUSTOM_ALLOCATOR)(*blocks.addresses)
        with torch.cuda.device(device):  # a pool belongs to the device that is current when it is made
            self._pool: Any = torch.cuda.MemPool(allocator)
        self._turn, self._depth = threading.RLock(), 0
        self._everywhere = False

    @contextmanager
    def here(self) -> Iterator[None]:
        """This thread's allocations come from the pool. Torch knows one user of a pool at a time; others wait."""
        with self._turn:
            self._depth += 1
            try:
                if self._depth > 1 or self._pool is None:
                    yield
                else:
                    with torch.cuda.use_mem_pool(self._pool, device=self._device):
                        yield
            finally:
                self._depth -= 1

    def everywhere(self) -> None:
        """Every allocation of the process on this device, backward's threads included, until it is closed."""
        begin = getattr(torch._C, FOR_ALL_THREADS[0])
        begin(self._device, self._pool.id)
        self._everywhere = True

    def close(self) -> None:
        """Gives the pool back to torch."""
        if self._everywhere:
            end, release = (getattr(torch._C, name) for name in FOR_ALL_THREADS[1:])
            end(self._device, self._pool.id)
            release(self._device, self._pool.id)
            self._everywhere = False
        self._pool = None
