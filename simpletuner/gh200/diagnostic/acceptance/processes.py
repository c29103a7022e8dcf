"""Which machine it is, how torch would go beyond HBM, and what threads and forked children have of CUDA and memory."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context

from ...memory.driver import HOST, Advice, CudaError, DeviceAttribute
from ...memory.pages import PAGE
from .bench import Bench
from .claims import Answer, judged

CHILD_SECONDS = 20.0
TOUCHED, REJECTED, CALLED = 0, 41, 42


def machine(bench: Bench) -> Iterator[Answer]:
    """What the machine is, by its own report."""
    expected, seen = bench.facts.memory_mode, bench.mode
    yield judged("memory_mode", expected == seen, "both say the same", f"kernel and NVML: {expected}; driver: {seen}")
    page = bench.facts.host.page_bytes
    yield judged("page_size", PAGE % page == 0, "4 or 64 KB pages", f"{page // 1024} KB pages", page_bytes=page)
    concurrent = bench.attribute(DeviceAttribute.CONCURRENT_MANAGED_ACCESS)
    yield judged("concurrent_access", concurrent == 1, "attribute 89 is 1", f"it is {concurrent}")
    beyond = bench.facts.software.beyond_hbm
    yield judged("torch_allocator", beyond.possible, "pools of stock torch, or a build with use_uvm keys", beyond.text)
    # Last, as a driver that does not tell a UUID ends this part.
    known = {gpu.uuid: gpu.index for gpu in bench.facts.gpus.devices if gpu.uuid}
    uuids = [bench.driver.device_uuid(device) for device in range(bench.driver.device_count)]
    shown = [
        f"CUDA {device} is NVML {known[uuid]} ({uuid})"
        if uuid in known
        else f"CUDA {device} ({uuid}) is unknown to NVML"
        for device, uuid in enumerate(uuids)
    ]
    yield judged("devices_by_uuid", set(uuids) <= set(known), "one entry each", "; ".join(shown))


def threads(bench: Bench) -> Iterator[Answer]:
    """What a thread without a context can do."""
    driver, device = bench.driver, bench.device

    def work() -> tuple[int, int]:
        before = int(driver.call("cuCtxGetCurrent"))
        with device.managed(PAGE) as pointer:
            driver.advise(pointer, PAGE, Advice.SET_PREFERRED_LOCATION, HOST, bench.ordinal)
            device.move_in(pointer, PAGE)
            device.fill(pointer, 1, PAGE)
        return before, int(driver.call("cuCtxGetCurrent"))

    with ThreadPoolExecutor(1) as pool:
        right = pool.submit(work).result() == (0, 0)
    seen = "worked" if right else "a context was current before or after"
    expected = "no context before, allocation, advice, prefetch and fill work, no context after"
    yield judged("fresh_thread", right, expected, seen)


def forked_child(bench: Bench) -> Iterator[Answer]:
    """What a forked child can do."""
    with bench.managed(PAGE) as pointer:
        ctypes.memset(pointer, 1, PAGE)

        def touch() -> int:
            ctypes.string_at(pointer, 1)
            return TOUCHED

        ended = _child(touch)
        killed = ended in (-signal.SIGSEGV, -signal.SIGBUS)
        yield judged("child_has_no_memory", killed, "SIGBUS or SIGSEGV", _described(ended))

        def call() -> int:
            try:
                bench.driver.memory_info(bench.ordinal)
            except CudaError:
                return REJECTED
            return CALLED

        ended = _child(call)
        yield judged("child_calls_nothing", ended == REJECTED, "our own error, no call", _described(ended))


def _child(work: Callable[[], int]) -> int:
    """Its exit code, or the signal it died of, negative; it runs nothing of ours afterwards and leaves no core file."""

    def run() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os._exit(work())

    child = get_context("fork").Process(target=run)
    child.start()
    try:
        child.join(CHILD_SECONDS)
    finally:
        child.kill()
        child.join()
    return child.exitcode or 0


def _described(ended: int) -> str:
    if ended < 0:
        return f"it ended by {signal.Signals(-ended).name}"
    return {TOUCHED: "it read the memory", REJECTED: "rejected", CALLED: "it called the driver"}.get(
        ended, f"exit {ended}"
    )
