"""What torch's allocator asks of managed memory: blocks within the budget, placed by kind, counted."""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from ..memory.budget import ManagedBudget
from ..memory.driver import HOST, Advice, CudaError, Driver, Place
from ..memory.limits import spoken_size

logger = logging.getLogger("gh200.pools")

# What torch is told when there is no block: it raises its own out-of-memory error.
NO_BLOCK: Final = 0
_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
# Torch holds their addresses until the process ends, and may call them while the interpreter does.
_FOREVER: list[Any] = []


@dataclass(frozen=True)
class Kind:
    """A kind of memory, and which side its pages prefer."""

    name: str
    on_gpu: bool

    @property
    def place(self) -> str:
        return "managed, prefers the GPU" if self.on_gpu else "managed, prefers the CPU, mapped for the GPU"


class Blocks:
    """The managed blocks of one kind, as torch's allocator made them."""

    def __init__(self, kind: Kind, driver: Driver, budget: ManagedBudget) -> None:
        self.kind, self._driver, self._budget = kind, driver, budget
        self._lock = threading.Lock()
        self._sizes: dict[int, int] = {}
        self.bytes = self.peak = 0
        self.refusals: Counter[str] = Counter()
        self._callbacks = _ALLOCATE(self._allocate), _FREE(self._free)
        _FOREVER.append(self._callbacks)

    def addresses(self) -> tuple[int, int]:
        """Of the two functions, for torch."""
        allocate, free = (ctypes.cast(callback, ctypes.c_void_p).value for callback in self._callbacks)
        assert allocate and free
        return allocate, free

    def owns(self, base: int) -> bool:
        """Whether a managed allocation that begins here is one of these blocks."""
        return base in self._sizes

    def ranges(self) -> list[tuple[int, int]]:
        return list(self._sizes.copy().items())

    # Called by torch from any thread, backward's too. An exception would be lost in ctypes, so none leaves these two.

    def _allocate(self, size: int, device: int, stream: int | None) -> int:
        try:
            return self._new_block(size, device)
        except BaseException as error:
            self._refuse(size, f"{type(error).__name__}: {error}")
            return NO_BLOCK

    def _free(self, pointer: int, size: int, device: int, stream: int | None) -> None:
        if sys.is_finalizing():
            return
        try:
            self._driver.free(pointer, device)
        except CudaError as error:
            logger.warning("GH200 managed memory: a block of %s is not freed: %s", spoken_size(size), error)
            return
        with self._lock:
            self.bytes -= self._sizes.pop(pointer, 0)
        self._budget.give_back(size)

    def _new_block(self, size: int, device: int) -> int:
        free_hbm = self._driver.memory_info(device)[0] if self.kind.on_gpu else 0
        over = self._budget.take(size, free_hbm)
        if over is not None:
            self._refuse(size, over)
            return NO_BLOCK
        try:
            pointer = self._placed(size, device)
        except BaseException:
            self._budget.give_back(size)
            raise
        with self._lock:
            self._sizes[pointer] = size
            self.bytes += size
            self.peak = max(self.peak, self.bytes)
        return pointer

    def _placed(self, size: int, device: int) -> int:
        pointer = self._driver.allocate_managed(size, device)
        try:
            gpu = Place(device)
            self._driver.advise(pointer, size, Advice.SET_PREFERRED_LOCATION, gpu if self.kind.on_gpu else HOST, device)
            if not self.kind.on_gpu:
                self._driver.advise(pointer, size, Advice.SET_ACCESSED_BY, gpu, device)
        except CudaError as error:
            # Advice only says where pages should be; without it they are still right.
            self._say(f"advice on {self.kind.name}", f"not given: {error}")
        return pointer

    def _refuse(self, size: int, why: str) -> None:
        self._say(
            f"{spoken_size(size)} for {self.kind.name}", f"refused: {why}; torch reports that it is out of memory"
        )

    def _say(self, what: str, why: str) -> None:
        with self._lock:
            self.refusals[why] += 1
            first = self.refusals[why] == 1
        if first:
            logger.warning("GH200 managed memory: %s %s", what, why)

    def report(self) -> dict[str, Any]:
        with self._lock:
            return {
                "place": self.kind.place,
                "blocks": len(self._sizes),
                "bytes": self.bytes,
                "peak_bytes": self.peak,
                "refused": dict(self.refusals),
            }
