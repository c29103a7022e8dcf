"""Threads that never used CUDA, and forked children: who has a context, and who has the memory."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context

from ...memory.driver import HOST, Advice, CudaError
from ...memory.pages import PAGE
from .bench import Bench
from .claims import Answer, judged

CHILD_SECONDS = 20.0
TOUCHED, REFUSED, CALLED = 0, 41, 42


def threads(bench: Bench) -> Iterator[Answer]:
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
    with bench.managed(PAGE) as pointer:
        ctypes.memset(pointer, 1, PAGE)

        def touch() -> int:
            ctypes.string_at(pointer, 1)
            return TOUCHED

        ended = _child(touch)
        killed = ended in (-signal.SIGSEGV, -signal.SIGBUS)
        yield judged("child_has_no_memory", killed, "SIGBUS or SIGSEGV", _spoken(ended))

        def call() -> int:
            try:
                bench.driver.memory_info(bench.ordinal)
            except CudaError:
                return REFUSED
            return CALLED

        ended = _child(call)
        yield judged("child_calls_nothing", ended == REFUSED, "our own error, no call", _spoken(ended))


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


def _spoken(ended: int) -> str:
    if ended < 0:
        return f"it ended by {signal.Signals(-ended).name}"
    return {TOUCHED: "it read the memory", REFUSED: "refused", CALLED: "it called the driver"}.get(
        ended, f"exit {ended}"
    )
