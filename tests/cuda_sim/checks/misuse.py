"""Every kind of violation once; the test finds each sentence in the report. Numa mode, two devices."""

from __future__ import annotations

import ctypes
import threading

from driver import DEVICE, HOST, MIB, PAGE, advise, call, context, library, made, managed, prefetch

INVALID_VALUE, INVALID_CONTEXT, INVALID_HANDLE, ILLEGAL_ADDRESS, NOT_SUPPORTED = 1, 201, 400, 700, 801


def check_threads_without_a_context() -> None:
    results: list[int] = []
    with context():
        block, event, stream = managed(PAGE), made("cuEventCreate", 0), made("cuStreamCreate", 1)

        def elsewhere() -> None:
            results.append(call("cuMemAlloc_v2", ctypes.byref(ctypes.c_ulonglong()), PAGE))
            results.append(advise(block, PAGE, HOST))
            results.append(call("cuEventRecord", event, stream))
            results.append(call("cuEventQuery", event))

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert results == [INVALID_CONTEXT, 0, 0, 0]
        assert (
            call("cuMemFree_v2", block) == call("cuEventDestroy_v2", event) == call("cuStreamDestroy_v2", stream) == 0
        )


def check_contexts() -> None:
    call("cuInit", 0)
    dead = made("cuDevicePrimaryCtxRetain", 1)
    assert call("cuDevicePrimaryCtxRelease_v2", 1) == 0
    assert call("cuCtxPushCurrent_v2", dead) == INVALID_CONTEXT
    assert call("cuDevicePrimaryCtxRelease_v2", 1) == INVALID_CONTEXT


def check_streams_and_events() -> None:
    with context():
        stream, event = made("cuStreamCreate", 1), made("cuEventCreate", 0)
        assert call("cuStreamSynchronize", event) == INVALID_HANDLE
        with context(1):
            other = made("cuStreamCreate", 1)
            assert call("cuEventRecord", event, other) == INVALID_HANDLE
            assert call("cuStreamWaitEvent", other, event, 0) == 0, "waiting across devices is allowed"
            assert call("cuStreamDestroy_v2", other) == 0
        assert call("cuStreamDestroy_v2", stream) == call("cuEventDestroy_v2", event) == 0
        assert call("cuStreamSynchronize", stream) == INVALID_HANDLE
        assert call("cuEventQuery", event) == INVALID_HANDLE


def check_pointers() -> None:
    with context():
        block, own, pinned = managed(MIB), made("cuMemAlloc_v2", MIB), made("cuMemHostAlloc", MIB, 0)
        assert prefetch(own, PAGE, DEVICE) == INVALID_VALUE
        assert advise(pinned, PAGE, HOST) == INVALID_VALUE
        assert prefetch(block, 2 * MIB, DEVICE) == INVALID_VALUE
        assert call("cuMemFree_v2", pinned) == call("cuMemFreeHost", own) == INVALID_VALUE
        assert call("cuMemFree_v2", block + PAGE) == INVALID_VALUE
        assert call("cuMemFree_v2", block) == call("cuMemFree_v2", own) == call("cuMemFreeHost", pinned) == 0
        assert call("cuMemFree_v2", block) == INVALID_VALUE
        assert prefetch(block, PAGE, DEVICE) == INVALID_VALUE
        target = ctypes.create_string_buffer(PAGE)
        assert call("cuMemcpyDtoHAsync_v2", ctypes.addressof(target), own, PAGE, 0) == ILLEGAL_ADDRESS


def check_ranges_that_are_not_mapped() -> None:
    import mmap

    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    space = libc.mmap(None, ctypes.c_size_t(4 * PAGE), 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, ctypes.c_long(0))
    start = (space + PAGE - 1) // PAGE * PAGE
    libc.munmap(ctypes.c_void_p(start + PAGE), ctypes.c_size_t(PAGE))
    with context():
        assert prefetch(start, PAGE, HOST) == 0
        assert prefetch(start, 2 * PAGE, HOST) == INVALID_VALUE
        own = made("cuMemAlloc_v2", 2 * PAGE)
        assert call("cuMemcpyHtoDAsync_v2", own, start, 2 * PAGE, 0) == INVALID_VALUE
        assert call("cuMemcpyHtoDAsync_v2", own, own, PAGE, 0) == INVALID_VALUE, "not from the host"
        assert call("cuMemFree_v2", own) == 0


def check_calls_that_are_not_modelled() -> None:
    call("cuInit", 0)
    assert call("cuMemCreate") == NOT_SUPPORTED and library.cudaGraphLaunch() == NOT_SUPPORTED
