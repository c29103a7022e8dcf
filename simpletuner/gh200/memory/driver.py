"""A thin, typed layer over the CUDA driver: managed memory, advice, prefetch, attributes; every result is checked."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from types import ModuleType
from typing import Any
from uuid import UUID

from .driver_types import (
    HOST,
    Advice,
    BindingsMissing,
    CudaError,
    DeviceAttribute,
    DriverUnavailable,
    ManagedRange,
    Place,
    RangeAttribute,
)

__all__ = [
    "HOST",
    "Advice",
    "BindingsMissing",
    "CudaError",
    "DeviceAttribute",
    "Driver",
    "DriverUnavailable",
    "ManagedRange",
    "Place",
    "RangeAttribute",
    "load_driver",
]

ATTACH_GLOBAL = 1
STREAM_NON_BLOCKING = 1
EVENT_DISABLE_TIMING = 2
NO_FLAGS = 0
LOCATION_ABI = 12020  # the driver version that brought advice and prefetch with a location instead of a device number
BATCH, BATCHES = "cuMemPrefetchBatchAsync", 13000  # many prefetches in one call, and since when

Range = tuple[int, int]  # where memory begins, and its bytes


class Driver:
    """The calls of `cuda.bindings.driver` this fork needs, with the same meaning on bindings 12.x and 13.x."""

    def __init__(self, api: ModuleType) -> None:
        self._api = api
        self._pid = os.getpid()
        self._contexts: dict[int, Any] = {}
        self._lock = threading.Lock()
        # 13.x gave the plain names the meaning of the _v2 ones; in 12.x they are still the old interface.
        suffix = "" if api.CUDA_VERSION >= 13000 else "_v2"
        self._advise_name, self._prefetch_name = f"cuMemAdvise{suffix}", f"cuMemPrefetchAsync{suffix}"
        if not hasattr(api, self._advise_name):
            raise DriverUnavailable(
                f"cuda-bindings for CUDA {api.CUDA_VERSION // 1000}.{api.CUDA_VERSION % 1000 // 10} is too old",
                why="it has no memory advice with a location",
                fix="install cuda-bindings 12.9 or newer",
            )
        self.call("cuInit", NO_FLAGS)
        self.version: int = self.call("cuDriverGetVersion")
        if self.version < LOCATION_ABI:
            raise DriverUnavailable(
                f"the CUDA driver {self.version // 1000}.{self.version % 1000 // 10} is too old",
                why="advice and prefetch with a location came with 12.2",
                fix="update the NVIDIA driver to R535 or newer",
            )
        self._has_batches = self.version >= BATCHES and hasattr(api, BATCH)
        self.device_count: int = self.call("cuDeviceGetCount")
        if self.device_count < 1:
            raise DriverUnavailable("the CUDA driver sees no GPU", fix="check CUDA_VISIBLE_DEVICES and nvidia-smi")

    def call(self, name: str, *arguments: Any) -> Any:
        """Calls the driver and checks the result."""
        if os.getpid() != self._pid:
            raise CudaError(name, "CUDA_ERROR_NOT_INITIALIZED")  # a forked child inherits no usable CUDA state
        try:
            status, *values = getattr(self._api, name)(*arguments)
        except RuntimeError as error:
            # The bindings raise when the driver library does not have the function.
            raise CudaError(name, f"FUNCTION_NOT_AVAILABLE ({error})") from error
        if int(status):
            raise CudaError(name, status.name)
        return values[0] if values else None

    def error(self, call: str, result: int) -> CudaError:
        """For a result that native code was given."""
        try:
            return CudaError(call, self._api.CUresult(result).name)
        except ValueError:
            return CudaError(call, f"error {result}")

    def function(self, name: str) -> int:
        """Its address, for native code; advice is the one with a location."""
        return int(self.call("cuGetProcAddress", name.encode(), LOCATION_ABI, NO_FLAGS))

    def context(self, device: int) -> int:
        """The primary context, for native code; it is retained as long as this process uses the driver."""
        return int(self._context(device))

    def _context(self, device: int) -> Any:
        with self._lock:
            if device not in self._contexts:
                handle = self.call("cuDeviceGet", device)
                self._contexts[device] = self.call("cuDevicePrimaryCtxRetain", handle)
            return self._contexts[device]

    @contextmanager
    def on_device(self, device: int) -> Iterator[None]:
        """Makes the primary context of a device current."""
        self.call("cuCtxPushCurrent", self._context(device))
        try:
            yield
        finally:
            # A context that stays pushed would be the wrong one for whatever this thread does next.
            self._twice("cuCtxPopCurrent")

    def let_go(self) -> None:
        """Give the contexts back; a later call takes them again."""
        with self._lock:
            devices = list(self._contexts)
            self._contexts.clear()
        for device in devices:
            # At exit the driver may have gone first, and a forked child has none.
            with suppress(CudaError):
                self._twice("cuDevicePrimaryCtxRelease", self._twice("cuDeviceGet", device))

    def _twice(self, name: str, *arguments: Any) -> Any:
        """For what undoes something: where it fails once, it is tried again."""
        try:
            return self.call(name, *arguments)
        except CudaError:
            return self.call(name, *arguments)

    def _location(self, place: Place) -> Any:
        kinds = self._api.CUmemLocationType
        location = self._api.CUmemLocation()
        host = place.device is None
        location.type = kinds.CU_MEM_LOCATION_TYPE_HOST if host else kinds.CU_MEM_LOCATION_TYPE_DEVICE
        location.id = 0 if host else place.device
        return location

    def packed(self, place: Place) -> int:
        """A location as the one number in which a struct of two is handed to a function."""
        location = self._location(place)
        return int(location.type) | int(location.id) << 32

    def allocate_managed(self, size: int, device: int) -> int:
        """The address of new managed memory."""
        pointer = 0
        try:
            with self.on_device(device):
                pointer = int(self.call("cuMemAllocManaged", size, ATTACH_GLOBAL))
        except CudaError:
            if pointer:
                self.free(pointer, device)
            raise
        return pointer

    def free(self, pointer: int, device: int) -> None:
        """Frees managed memory."""
        self._give_back("cuMemFree", pointer, device)

    def _give_back(self, name: str, what: int, device: int) -> None:
        """Tried twice, because what is not given back is lost until the process ends."""
        for last in (False, True):
            try:
                with self.on_device(device):
                    self.call(name, what)
                return
            except CudaError:
                if last:
                    raise

    def advise(self, pointer: int, size: int, advice: Advice, place: Place, device: int) -> None:
        """Gives advice on a range."""
        with self.on_device(device):
            self.call(self._advise_name, pointer, size, self._api.CUmem_advise(advice), self._location(place))

    def prefetch(self, pointer: int, size: int, place: Place, stream: int, device: int) -> None:
        """Moves a range in the order of a stream."""
        with self.on_device(device):
            self.call(self._prefetch_name, pointer, size, self._location(place), NO_FLAGS, stream)

    def prefetch_all(self, ranges: Sequence[Range], place: Place, stream: int, device: int) -> None:
        """Many ranges at once: one call where bindings and driver have one for it (13.0), and not in the null stream."""
        with self.on_device(device):
            if stream and len(ranges) > 1 and self._has_batches:
                pointers, sizes = [self._api.CUdeviceptr(start) for start, _ in ranges], [size for _, size in ranges]
                places = [self._location(place)]
                self.call(BATCH, pointers, sizes, len(ranges), places, [0], len(places), NO_FLAGS, stream)
                return
            for start, size in ranges:
                self.call(self._prefetch_name, start, size, self._location(place), NO_FLAGS, stream)

    def managed_range(self, pointer: int, device: int) -> ManagedRange | None:
        """The managed allocation a pointer lies in; None for any other memory."""
        kinds = self._api.CUpointer_attribute
        with self.on_device(device):
            try:
                if not self.call("cuPointerGetAttribute", kinds.CU_POINTER_ATTRIBUTE_IS_MANAGED, pointer):
                    return None
            except CudaError as error:
                if error.name == "CUDA_ERROR_INVALID_VALUE":  # the driver's answer for memory it never saw
                    return None
                raise
            base = self.call("cuPointerGetAttribute", kinds.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, pointer)
            size = self.call("cuPointerGetAttribute", kinds.CU_POINTER_ATTRIBUTE_RANGE_SIZE, pointer)
        return ManagedRange(int(base), int(size))

    def range_attribute(self, pointer: int, size: int, attribute: RangeAttribute, device: int) -> int:
        """What the driver remembers about a managed range: a device, -1 for the host, -2 for nothing."""
        with self.on_device(device):
            value = self.call("cuMemRangeGetAttribute", 4, self._api.CUmem_range_attribute(attribute), pointer, size)
        return int(value)

    def device_attribute(self, attribute: DeviceAttribute, device: int) -> int:
        """The value of one attribute."""
        return int(self.call("cuDeviceGetAttribute", self._api.CUdevice_attribute(attribute), device))

    def device_name(self, device: int) -> str:
        """The driver's name of a device."""
        name: bytes = self.call("cuDeviceGetName", 256, device)
        return name.split(b"\0", 1)[0].decode()

    def device_uuid(self, device: int) -> str:
        """As NVML and nvidia-smi write it; numbers of devices are not theirs."""
        known_to_both = "cuDeviceGetUuid_v2" if hasattr(self._api, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
        return f"GPU-{UUID(bytes=bytes(self.call(known_to_both, self.call('cuDeviceGet', device)).bytes))}"

    def memory_info(self, device: int) -> tuple[int, int]:
        """Free and total bytes of the GPU's own memory."""
        with self.on_device(device):
            status, free, total = self._api.cuMemGetInfo()
        if int(status):
            raise CudaError("cuMemGetInfo", status.name)
        return int(free), int(total)

    def total_memory(self, device: int) -> int:
        """Of the GPU's own memory; needs no context, so asking takes none of it."""
        return int(self.call("cuDeviceTotalMem", self.call("cuDeviceGet", device)))

    def create_stream(self, device: int) -> int:
        """A stream that does not wait for the null stream."""
        with self.on_device(device):
            return int(self.call("cuStreamCreate", STREAM_NON_BLOCKING))

    def destroy_stream(self, stream: int, device: int) -> None:
        """Frees a stream."""
        self._give_back("cuStreamDestroy", stream, device)

    def finish_stream(self, stream: int, device: int) -> None:
        """Wait until the GPU is done with what was put into the stream."""
        with self.on_device(device):
            self.call("cuStreamSynchronize", stream)

    def create_event(self, device: int) -> int:
        """An event without timing."""
        with self.on_device(device):
            return int(self.call("cuEventCreate", EVENT_DISABLE_TIMING))

    def record_event(self, event: int, stream: int, device: int) -> None:
        """Records an event in a stream."""
        with self.on_device(device):
            self.call("cuEventRecord", event, stream)

    def wait_for_event(self, stream: int, event: int, device: int) -> None:
        """What is put into the stream from now on begins after the event; nobody waits here."""
        with self.on_device(device):
            self.call("cuStreamWaitEvent", stream, event, NO_FLAGS)

    def destroy_event(self, event: int, device: int) -> None:
        """Frees an event."""
        self._give_back("cuEventDestroy", event, device)

    def event_reached(self, event: int, device: int) -> bool:
        """Whether everything before the event is done."""
        try:
            with self.on_device(device):
                self.call("cuEventQuery", event)
        except CudaError as error:
            if error.name == "CUDA_ERROR_NOT_READY":
                return False
            raise
        return True

    def synchronize(self, device: int) -> None:
        """Waits for everything on the device."""
        with self.on_device(device):
            self.call("cuCtxSynchronize")


@cache
def load_driver() -> Driver | DriverUnavailable:
    """The driver, or the reason why there is none; asked once per process, nothing is loaded before."""
    try:
        from cuda.bindings import driver as api
    except ImportError as error:
        return BindingsMissing(
            "cuda.bindings cannot be imported", why=str(error), fix="install cuda-bindings 12.9 or newer"
        )
    try:
        driver = Driver(api)
    except DriverUnavailable as error:
        return error
    except CudaError as error:
        return DriverUnavailable("there is no usable CUDA driver", why=str(error), fix="check nvidia-smi")
    atexit.register(driver.let_go)
    return driver
