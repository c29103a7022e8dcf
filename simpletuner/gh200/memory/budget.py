"""The one bound of all managed memory of a run: a multiple of the GPU's memory, an operator's limit, what is free."""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

from .limits import GB, Limit, format_size, memory_limits

Cells = NDArray[np.int64]
CELL = 8  # bytes
# What a budget shares with the native code that takes of it: the bound; bytes that pools have; bytes they were ever
# handed; up to where that may go. Native code writes the middle two, Python the others, so neither undoes the other.
LIMIT, IN_USE, HANDED, CEILING, CELLS = range(5)


def shared_counters(count: int) -> Cells:
    """Numbers that native code shares by their address; never freed, as it may use them after the interpreter's end."""
    allocate = ctypes.CDLL(None).calloc
    allocate.restype, allocate.argtypes = ctypes.c_void_p, (ctypes.c_size_t, ctypes.c_size_t)
    address = allocate(count, CELL)
    if not address:
        raise MemoryError(f"there is no memory for {count} numbers")
    return np.ctypeslib.as_array((ctypes.c_int64 * count).from_address(address))


class ManagedBudget:
    """What torch's pools have of it; caches count that as taken, pools never count the caches."""

    def __init__(self, limit: int, name: str) -> None:
        self.limit, self.name = limit, name
        self._cells = shared_counters(CELLS)
        self._cells[LIMIT] = limit
        self.tightest = self.look()

    @property
    def address(self) -> int:
        """Of the shared counters, for native code."""
        return int(self._cells.ctypes.data)

    @property
    def pools(self) -> int:
        """Bytes of torch's pools."""
        return int(self._cells[IN_USE])

    def look(self) -> Limit:
        """What machine and cgroup have free now; every block lowers it until somebody looks again."""
        # Before the look: what is handed out meanwhile counts twice, never not at all.
        handed = int(self._cells[HANDED])
        self.tightest = memory_limits()[0]
        self._cells[CEILING] = handed + self.tightest.bytes
        return self.tightest

    def over_limit(self, in_use: int) -> str:
        """What is wrong where the bound is met."""
        return f"{self.name}: {format_size(self.limit)}, {format_size(in_use)} of it in use"

    def over_available(self, left: int) -> str:
        """What is wrong where memory is short."""
        return f"{self.tightest.name}: {format_size(left)}"


def managed_budget(hbm: int, ratio: float, limit_gb: float | None) -> ManagedBudget:
    """The tighter of the oversubscription ratio and the limit of the operator."""
    bounds = {f"uvm_oversubscription_ratio {ratio:g} x {format_size(hbm)} of GPU memory": int(hbm * ratio)}
    if limit_gb is not None:
        bounds["managed_memory_limit_gb"] = int(limit_gb * GB)
    name = min(bounds, key=lambda bound: bounds[bound])
    return ManagedBudget(bounds[name], name)
