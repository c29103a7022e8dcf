"""The driver calls only the diagnostic needs: fills by the GPU, plain and pinned copies, all checked."""

from __future__ import annotations

from ..memory.driver import HOST, NO_FLAGS, CudaError, DeviceAttribute, Driver, Place, RangeAttribute

WORD = 4


class Device:
    """One GPU through the driver layer; no call returns before the GPU is done with it."""

    def __init__(self, driver: Driver, ordinal: int) -> None:
        self.driver, self.ordinal = driver, ordinal
        self._stream = driver.create_stream(ordinal)

    def memory(self) -> tuple[int, int]:
        """Free and total bytes of the GPU's own memory."""
        return self.driver.memory_info(self.ordinal)

    @property
    def shares_managed_memory(self) -> bool:
        """Whether managed memory may be used from both sides at once, which prefetch to the GPU needs."""
        return bool(self.driver.device_attribute(DeviceAttribute.CONCURRENT_MANAGED_ACCESS, self.ordinal))

    def allocate_managed(self, size: int) -> int:
        return self.driver.allocate_managed(size, self.ordinal)

    def allocate(self, size: int) -> int:
        with self.driver.on_device(self.ordinal):
            return int(self.driver.call("cuMemAlloc", size))

    def free(self, pointer: int) -> None:
        self.driver.free(pointer, self.ordinal)

    def allocate_pinned(self, size: int) -> int:
        with self.driver.on_device(self.ordinal):
            return int(self.driver.call("cuMemHostAlloc", size, NO_FLAGS))

    def free_pinned(self, pointer: int) -> None:
        with self.driver.on_device(self.ordinal):
            self.driver.call("cuMemFreeHost", pointer)

    def fill(self, pointer: int, word: int, size: int) -> None:
        """Writes a 32-bit word over a range: the GPU does it, not the host."""
        with self.driver.on_device(self.ordinal):
            self.driver.call("cuMemsetD32Async", pointer, word, size // WORD, self._stream)
        self._wait()

    def copy_in(self, to: int, source: int, size: int) -> None:
        with self.driver.on_device(self.ordinal):
            self.driver.call("cuMemcpyHtoDAsync", to, source, size, self._stream)
        self._wait()

    def copy_out(self, to: int, source: int, size: int) -> None:
        with self.driver.on_device(self.ordinal):
            self.driver.call("cuMemcpyDtoHAsync", to, source, size, self._stream)
        self._wait()

    def move_in(self, pointer: int, size: int) -> None:
        """Prefetches managed memory to the GPU."""
        self.driver.prefetch(pointer, size, Place(self.ordinal), self._stream, self.ordinal)
        self._wait()

    def move_out(self, pointer: int, size: int) -> None:
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
            pass  # after a fatal error every call fails; the test has told of it, and the stream goes with the process
