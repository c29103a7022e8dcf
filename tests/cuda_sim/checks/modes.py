"""What differs between the modes; CUDA_SIM_MODE says which one this is. HBM has 4 MiB here."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

from driver import (
    DEVICE,
    HOST,
    MIB,
    PAGE,
    Location,
    advise,
    call,
    context,
    free_bytes,
    library,
    made,
    managed,
    prefetch,
    read,
    resident,
    write,
)

MODE = os.environ["CUDA_SIM_MODE"]


def attribute(number: int) -> int:
    value = ctypes.c_int(-9)
    assert call("cuDeviceGetAttribute", ctypes.byref(value), number, 0) == 0
    return value.value


def check_attributes() -> None:
    with context():
        coherent = int(MODE != "pcie")
        numa = int(MODE == "numa")
        assert [attribute(n) for n in (88, 100, 101, 130)] == [coherent, coherent, numa, numa]
        assert (attribute(131) >= 0) == (MODE == "numa")


def check_first_touch_follows_the_advice_only_where_hbm_is_a_node() -> None:
    with context():
        before, block = free_bytes(), managed(MIB)
        assert resident(block, MIB, 0) == 0 and free_bytes() == before
        assert advise(block, MIB, DEVICE) == 0
        assert free_bytes() == before, "advice alone moves nothing"
        write(block, MIB // 2)
        in_hbm = MIB // 2 if MODE == "numa" else 0
        assert resident(block, MIB, 0) == in_hbm and free_bytes() == before - in_hbm
        assert call("cuMemFree_v2", block) == 0 and free_bytes() == before


def check_touches_before_the_advice_stay() -> None:
    with context():
        block = managed(MIB)
        write(block, MIB)
        assert advise(block, MIB, DEVICE) == 0
        assert resident(block, MIB, -1) == MIB
        assert call("cuMemFree_v2", block) == 0


def check_cpu_reads_of_pages_in_hbm() -> None:
    with context():
        block = managed(2 * PAGE)
        write(block, 2 * PAGE, 5)
        assert prefetch(block, 2 * PAGE, DEVICE) == 0 and resident(block, 2 * PAGE, 0) == 2 * PAGE
        assert read(block, PAGE) == b"\5" * PAGE
        assert resident(block, 2 * PAGE, 0) == (2 * PAGE if MODE == "numa" else PAGE)
        assert call("cuMemFree_v2", block) == 0


def check_prefetch_of_system_memory() -> None:
    buffer = ctypes.create_string_buffer(3 * PAGE)
    start = (ctypes.addressof(buffer) + PAGE - 1) // PAGE * PAGE
    with context():
        before = free_bytes()
        assert prefetch(start, PAGE, DEVICE) == (1 if MODE == "pcie" else 0)
        assert free_bytes() == before


def check_capacity_evicts_managed_pages_for_device_memory() -> None:
    with context():
        block = managed(3 * MIB)
        assert prefetch(block, 3 * MIB, DEVICE) == 0
        own = made("cuMemAlloc_v2", 2 * MIB)
        assert resident(block, 3 * MIB, 0) == 2 * MIB and free_bytes() == 0
        nothing = ctypes.c_ulonglong()
        assert call("cuMemAlloc_v2", ctypes.byref(nothing), 3 * MIB) == 2
        assert call("cuMemFree_v2", own) == 0 == call("cuMemFree_v2", block)


def check_batch_of_prefetches() -> None:
    with context():
        first, second, stream = managed(MIB), managed(MIB), made("cuStreamCreate", 1)
        starts, sizes = (ctypes.c_ulonglong * 2)(first, second), (ctypes.c_size_t * 2)(MIB, PAGE)
        places, begin = (Location * 2)(Location(DEVICE, 0), Location(HOST, 0)), (ctypes.c_size_t * 2)(0, 1)
        batch = library.cuMemPrefetchBatchAsync
        assert prefetch(second, MIB, DEVICE) == 0
        nulls = [ctypes.c_size_t(2), places, begin, ctypes.c_size_t(2), ctypes.c_ulonglong(0)]
        assert batch(starts, sizes, *nulls, ctypes.c_void_p(stream)) == 0
        assert resident(first, MIB, 0) == MIB and resident(second, MIB, 0) == MIB - PAGE
        begin[0] = 1
        assert batch(starts, sizes, *nulls, ctypes.c_void_p(stream)) == 1, "the first place is for the first range"
        assert call("cuStreamDestroy_v2", stream) == call("cuMemFree_v2", first) == call("cuMemFree_v2", second) == 0


def check_older_drivers_have_no_batch() -> None:
    found = ctypes.c_void_p()
    library.cuGetProcAddress_v2(b"cuMemPrefetchBatchAsync", ctypes.byref(found), 12090, ctypes.c_ulonglong(0), None)
    assert not found.value
    library.cuGetProcAddress_v2(b"cuMemPrefetchBatchAsync", ctypes.byref(found), 13000, ctypes.c_ulonglong(0), None)
    assert found.value


def check_a_forked_child_has_neither_driver_nor_memory() -> None:
    with context():
        block = managed(PAGE)
        write(block, PAGE)
        rejected = os.fork()
        if not rejected:
            os._exit(0 if call("cuCtxSynchronize") == 3 else 1)
        assert os.waitpid(rejected, 0)[1] == 0
        touching = os.fork()
        if not touching:
            read(block, 1)
            os._exit(0)
        assert os.WTERMSIG(os.waitpid(touching, 0)[1]) in (signal.SIGSEGV, signal.SIGBUS)
        assert read(block, 1) == b"\7" and call("cuMemFree_v2", block) == 0


def check_devices_differ_by_uuid() -> None:
    management = ctypes.CDLL("libnvidia-ml.so.1")
    assert management.nvmlInit_v2() == 0
    handle, text, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(96), ctypes.create_string_buffer(16)
    assert management.nvmlDeviceGetHandleByIndex_v2(1, ctypes.byref(handle)) == 0
    assert management.nvmlDeviceGetUUID(handle, text, 96) == 0
    call("cuInit", 0)
    assert call("cuDeviceGetUuid_v2", uuid, 0) == 0, "CUDA_VISIBLE_DEVICES=1: CUDA's first is NVML's second"
    assert text.value.decode().removeprefix("GPU-").replace("-", "") == uuid.raw.hex()


def check_first_line_of_the_page_map_is_real() -> None:
    """The CPU cannot read the GPU's own memory through its address."""
    with context():
        own = made("cuMemAlloc_v2", PAGE)
        lines = Path("/proc/self/maps").read_text().splitlines()
        spans = {line.split()[0].split("-")[0]: line.split()[1] for line in lines}
        assert spans[f"{own:x}"].startswith("---"), spans[f"{own:x}"]
        assert call("cuMemFree_v2", own) == 0
