"""The ways of a batch to the GPU on the second of two devices: the same bits, one copy, and figures for each."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from gh200_lab.checkout import see_this_checkout

see_this_checkout()

from simpletuner.gh200.memory.driver import CudaError, Driver, load_driver  # noqa: E402
from simpletuner.gh200.memory.one_copy import OneCopy, PinningRefused  # noqa: E402
from simpletuner.gh200.memory.ways import WAYS, time_ways  # noqa: E402
from tests.gpu_stand_in.stand_in import read_log  # noqa: E402

DEVICE = 1
MB = 1 << 20


def _driver() -> Driver:
    driver = load_driver()
    assert isinstance(driver, Driver)
    return driver


def _logged() -> int:
    return len(read_log(Path(os.environ["STAND_IN_LOG"])))


def check_one_copy_gives_the_same_bits_with_their_strides() -> None:
    wide = torch.arange(4096, dtype=torch.float32).view(64, 64)
    sent = [wide, wide.t(), wide[3:9, ::2], wide.to(torch.bfloat16), torch.tensor(7, dtype=torch.int64), wide > 5]
    mover = OneCopy(DEVICE)
    for turn in range(3):
        there = mover.move(sent)
        for one, other in zip(sent, there, strict=True):
            assert other.device.index == DEVICE and other.stride() == one.stride() and other.dtype == one.dtype
            assert torch.equal(other.cpu(), one), turn
    assert mover.batches == 3
    mover.close()


def check_one_copy_is_one_copy_on_a_stream_of_its_own_ordered_by_events() -> None:
    mover = OneCopy(DEVICE)
    entries = [torch.full((1000, 16), float(number)) for number in range(8)]
    mover.move(entries)
    torch.cuda.synchronize(DEVICE)
    before = _logged()
    reader = torch.cuda.Stream(DEVICE)
    with torch.cuda.stream(reader):
        mover.move(entries)
    watched = (
        "cudaEventSynchronize",
        "cudaHostAlloc",
        "cudaMemcpyAsync",
        "cudaEventRecordWithFlags",
        "cudaStreamWaitEvent",
    )
    calls = [(name, call) for name, call in read_log(Path(os.environ["STAND_IN_LOG"]))[before:] if name in watched]
    assert [name for name, _ in calls][:4] == [
        "cudaEventSynchronize", "cudaMemcpyAsync", "cudaEventRecordWithFlags", "cudaStreamWaitEvent",
    ], calls  # fmt: skip
    mover.close()


def check_every_way_is_timed_and_nothing_is_left() -> None:
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info(DEVICE)[0]
    reserved = torch.cuda.memory_reserved(DEVICE)
    state = torch.get_rng_state(), torch.cuda.get_rng_state(DEVICE)
    timed = time_ways(DEVICE, 2 * MB, entries=4, seconds=0.1)
    assert list(timed.timings) == list(WAYS) and timed.failed == {} and timed.batch_bytes == 2 * MB, timed
    assert all(0 < each.lowest <= each.median <= each.highest for each in timed.timings.values()), timed
    assert torch.cuda.mem_get_info(DEVICE)[0] == free and torch.cuda.memory_reserved(DEVICE) == reserved
    assert torch.equal(state[0], torch.get_rng_state()) and torch.equal(state[1], torch.cuda.get_rng_state(DEVICE))


def check_a_batch_larger_than_memory_is_measured_smaller() -> None:
    free = torch.cuda.mem_get_info(DEVICE)[0]
    timed = time_ways(DEVICE, 1 << 40, entries=3, ways=("pinned",), seconds=0)
    assert 0 < timed.batch_bytes < free // 4 and timed.rounds == 3, timed


def check_a_way_that_fails_has_its_reason_and_the_others_their_figures() -> None:
    driver = _driver()
    allocate = driver.allocate_managed

    def refused(size: int, device: int) -> int:
        raise CudaError("cuMemAllocManaged", "CUDA_ERROR_OUT_OF_MEMORY")

    driver.allocate_managed = refused  # type: ignore[method-assign]
    try:
        timed = time_ways(DEVICE, MB, seconds=0)
    finally:
        driver.allocate_managed = allocate  # type: ignore[method-assign]
    assert set(timed.timings) == {"pinned", "hbm", "stock"} and "OUT_OF_MEMORY" in timed.failed["managed"], timed


def check_pinned_memory_that_is_refused_is_said() -> None:
    mover, empty = OneCopy(DEVICE), torch.empty

    def refused(*sizes: Any, **options: Any) -> torch.Tensor:
        if options.get("pin_memory"):
            raise RuntimeError("CUDA error: out of memory")
        return empty(*sizes, **options)

    torch.empty = refused  # type: ignore[assignment]
    try:
        mover.move([torch.ones(8)])
        raise AssertionError("there is no such memory")
    except PinningRefused as error:
        assert "out of memory" in str(error)
    finally:
        torch.empty = empty
    assert mover.move([torch.ones(8)])[0].sum().item() == 8
    mover.close()
