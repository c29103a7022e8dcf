"""The driver calls only the diagnostic needs: fills by the GPU, plain and pinned copies, all checked."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..memory.driver import HOST, NO_FLAGS, CudaError, DeviceAttribute, Driver, Place, RangeAttribute

WORD = 4
GRANULE = 2 << 20
ProgressLine = Callable[[str], None]  # which work begins


def holds(pointer: int, word: int, size: int) -> bool:
    """Whether the host reads this word all over a range; other threads may run meanwhile."""
    block = word.to_bytes(WORD, sys.byteorder) * (GRANULE // WORD)
    compare = ctypes.CDLL(None).memcmp
    compare.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)
    starts = range(0, size, GRANULE)
    return not any(compare(pointer + start, block, min(GRANULE, size - start)) for start in starts)


@contextmanager
def ordinary(size: int) -> Iterator[int]:
    """Memory no driver knows of, touched by the CPU."""
    mapping = mmap.mmap(-1, size)
    buffer = (ctypes.c_ubyte * size).from_buffer(mapping)
    try:
        ctypes.memset(ctypes.addressof(buffer), 1, size)
        yield ctypes.addressof(buffer)
    finally:
        del buffer
        mapping.close()


class Device:
    """One GPU through the driver layer; no call returns before the GPU is done with it."""

    def __init__(self, driver: Driver, ordinal: int) -> None:
        self.driver, self.ordinal = driver, ordinal
        self._stream = driver.create_stream(ordinal)

    def memory(self) -> tuple[int, int]:
        """Free and total bytes of the GPU's own memory."""
        return self.driver.memory_info(self.ordinal)

    def sample(self, largest: int, host: int) -> int:
        """Bytes one test may take: a quarter of what GPU and host have free, in whole granules; 0 where that is none."""
        return min(largest, self.memory()[0] // 4, host // 4) // GRANULE * GRANULE

    @property
    def shares_managed_memory(self) -> bool:
        """Whether managed memory may be used from both sides at once, which prefetch to the GPU needs."""
        return bool(self.driver.device_attribute(DeviceAttribute.CONCURRENT_MANAGED_ACCESS, self.ordinal))

    @contextmanager
    def managed(self, size: int) -> Iterator[int]:
        """Managed memory, freed at the end."""
        pointer = self.driver.allocate_managed(size, self.ordinal)
        try:
            yield pointer
        finally:
            self.driver.free(pointer, self.ordinal)

    @contextmanager
    def plain(self, size: int) -> Iterator[int]:
        """Memory of the GPU alone."""
        with self.driver.on_device(self.ordinal):
            pointer = int(self.driver.call("cuMemAlloc", size))
        try:
            yield pointer
        finally:
            self.driver.free(pointer, self.ordinal)

    @contextmanager
    def pinned(self, size: int) -> Iterator[int]:
        """Pinned host memory, freed at the end."""
        with self.driver.on_device(self.ordinal):
            pointer = int(self.driver.call("cuMemHostAlloc", size, NO_FLAGS))
        try:
            ctypes.memset(pointer, 1, size)
            yield pointer
        finally:
            with self.driver.on_device(self.ordinal):
                self.driver.call("cuMemFreeHost", pointer)

    def fill(self, pointer: int, word: int, size: int) -> None:
        """Writes a 32-bit word over a range: the GPU does it, not the host."""
        with self.driver.on_device(self.ordinal):
            self.driver.call("cuMemsetD32Async", pointer, word, size // WORD, self._stream)
        self._wait()

    def copy_in(self, to: int, source: int, size: int) -> None:
        """Copy from host to device and wait."""
        with self.driver.on_device(self.ordinal):
            self.driver.call("cuMemcpyHtoDAsync", to, source, size, self._stream)
        self._wait()

    def copy_out(self, to: int, source: int, size: int) -> None:
        """Copy from device to host and wait."""
        with self.driver.on_device(self.ordinal):
            self.driver.call("cuMemcpyDtoHAsync", to, source, size, self._stream)
        self._wait()

    def move_in(self, pointer: int, size: int) -> None:
        """Prefetches managed memory to the GPU."""
        self.driver.prefetch(pointer, size, Place(self.ordinal), self._stream, self.ordinal)
        self._wait()

    def move_all_in(self, ranges: list[tuple[int, int]]) -> None:
        """Prefetch several ranges to the device and wait."""
        self.driver.prefetch_all(ranges, Place(self.ordinal), self._stream, self.ordinal)
        self._wait()

    def move_out(self, pointer: int, size: int) -> None:
        """Prefetch a range to the host and wait."""
        self.driver.prefetch(pointer, size, HOST, self._stream, self.ordinal)
        self._wait()

    def last_moved_here(self, pointer: int, size: int) -> bool:
        """Whether the driver remembers this GPU as the place a range was last prefetched to."""
        where = self.driver.range_attribute(pointer, size, RangeAttribute.LAST_PREFETCH_LOCATION, self.ordinal)
        return where == self.ordinal

    def _wait(self) -> None:
        self.driver.finish_stream(self._stream, self.ordinal)

    def close(self) -> None:
        """Safe to call again."""
        stream, self._stream = self._stream, 0
        try:
            if stream:
                self.driver.destroy_stream(stream, self.ordinal)
        except CudaError:
            pass  # after a fatal error every call fails; the test has reported it, and the stream goes with the process
