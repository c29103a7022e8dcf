"""Numbers that native code shares with Python by their address, until the process ends."""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

Cells = NDArray[np.int64]
CELL = 8  # bytes


def lasting_cells(count: int) -> Cells:
    """All zero, and never freed: who has the address may use it after the interpreter's own end."""
    allocate = ctypes.CDLL(None).calloc
    allocate.restype, allocate.argtypes = ctypes.c_void_p, (ctypes.c_size_t, ctypes.c_size_t)
    address = allocate(count, CELL)
    if not address:
        raise MemoryError(f"there is no memory for {count} numbers")
    return np.ctypeslib.as_array((ctypes.c_int64 * count).from_address(address))
