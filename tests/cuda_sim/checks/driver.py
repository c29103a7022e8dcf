"""The simulated device's driver by ctypes, without torch: for what Python code that behaves could never do."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

MIB = 1 << 20
PAGE = 65536
DEVICE, HOST = 1, 2
PREFERRED = 3

library = ctypes.CDLL("libcuda.so.1")
library.cuda_sim_resident.argtypes = [ctypes.c_ulonglong, ctypes.c_size_t, ctypes.c_int]
library.cuda_sim_resident.restype = ctypes.c_size_t


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


def call(name: str, *arguments: object) -> int:
    """Integers are passed as 64 bits: addresses, sizes and numbers alike."""
    wide = [ctypes.c_ulonglong(value) if isinstance(value, int) else value for value in arguments]
    return int(getattr(library, name)(*wide))


def made(name: str, *arguments: object) -> int:
    """Call a function whose first argument receives what it makes."""
    value = ctypes.c_ulonglong()
    result = call(name, ctypes.byref(value), *arguments)
    assert result == 0, (name, result)
    return value.value


@contextmanager
def context(device: int = 0) -> Iterator[None]:
    call("cuInit", 0)
    handle = made("cuDevicePrimaryCtxRetain", device)
    assert call("cuCtxPushCurrent_v2", handle) == 0
    try:
        yield
    finally:
        assert call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p())) == 0
        assert call("cuDevicePrimaryCtxRelease_v2", device) == 0


def managed(size: int) -> int:
    return made("cuMemAllocManaged", size, 1)


def advise(pointer: int, size: int, kind: int, device: int = 0) -> int:
    return call("cuMemAdvise_v2", pointer, size, PREFERRED, Location(kind, device))


def prefetch(pointer: int, size: int, kind: int, device: int = 0, stream: int = 0) -> int:
    return call("cuMemPrefetchAsync_v2", pointer, size, Location(kind, device), 0, stream)


def resident(pointer: int, size: int, place: int) -> int:
    return int(library.cuda_sim_resident(pointer, size, place))


def free_bytes() -> int:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total)) == 0
    return free.value


def write(pointer: int, size: int, value: int = 7) -> None:
    ctypes.memset(pointer, value, size)


def read(pointer: int, size: int) -> bytes:
    return ctypes.string_at(pointer, size)
