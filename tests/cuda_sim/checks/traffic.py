"""The counters of the simulated device: what faults, what is evicted, what crosses the link and why."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from cuda_sim_torch.traffic import mark_step, read_traffic

from gh200_lab.checkout import see_this_checkout

see_this_checkout()

from simpletuner.gh200.memory.driver import HOST, Advice, Driver, Place, load_driver  # noqa: E402

PAGE, MB = 64 << 10, 1 << 20
HBM = 16 * MB


def driver() -> Driver:
    found = load_driver()
    assert isinstance(found, Driver)
    torch.empty(1, device="cuda")  # a context
    return found


@contextmanager
def block(size: int, *advice: tuple[Advice, Place]) -> Iterator[torch.Tensor]:
    cuda = driver()
    pointer = cuda.allocate_managed(size, 0)
    for kind, place in advice:
        cuda.advise(pointer, size, kind, place, 0)
    described = {"data": (pointer, False), "shape": (size,), "typestr": "|u1", "version": 3}
    try:
        yield torch.as_tensor(type("Exposed", (), {"__cuda_array_interface__": described})(), device="cuda")
    finally:
        cuda.free(pointer, 0)


def added(before: dict[str, Any]) -> dict[str, Any]:
    now = read_traffic()["total"]
    return {
        key: {cause: value[cause] - before[key][cause] for cause in value}
        if isinstance(value, dict)
        else value - before[key]
        for key, value in now.items()
    }


def total() -> dict[str, Any]:
    found: dict[str, Any] = read_traffic()["total"]
    return found


ON_GPU = ((Advice.SET_PREFERRED_LOCATION, Place(0)),)
WITH_CPU = ((Advice.SET_PREFERRED_LOCATION, HOST), (Advice.SET_ACCESSED_BY, Place(0)))


def check_a_first_touch_populates_and_a_page_that_is_there_costs_nothing() -> None:
    with block(8 * PAGE, *ON_GPU) as data:
        before = total()
        data.zero_()
        seen = added(before)
        assert seen["populated"] == 8 and seen["faults"] == seen["evictions"] == 0, seen
        before = total()
        data.add_(1)
        assert added(before) == {
            "faults": 0, "populated": 0, "evictions": 0,
            "to_device": {"copy": 0, "remote": 0, "migration": 0},
            "to_host": {"copy": 0, "remote": 0, "migration": 0},
        }  # fmt: skip


def check_pages_with_the_cpu_are_read_and_written_remotely() -> None:
    with block(8 * PAGE, *WITH_CPU) as data:
        data.zero_()
        for call, read, written in (
            (lambda: data.sum(), 8 * PAGE, 0),
            (lambda: data.add_(1), 8 * PAGE, 8 * PAGE),
            (lambda: data.zero_(), 0, 8 * PAGE),
            (lambda: torch.add(data[:PAGE], 1, out=data[PAGE : 2 * PAGE]), PAGE, PAGE),
        ):
            before = total()
            call()
            seen = added(before)
            assert seen["faults"] == 0 and seen["to_device"]["migration"] == 0, seen
            assert (seen["to_device"]["remote"], seen["to_host"]["remote"]) == (read, written), seen


def check_more_than_hbm_faults_and_evicts() -> None:
    with block(HBM, *ON_GPU) as one, block(HBM, *ON_GPU) as other:
        one.zero_()
        other.zero_()
        before = total()
        one.add_(1)
        seen = added(before)
        pages = HBM // PAGE
        assert 0.8 * pages < seen["faults"] <= pages, seen
        assert seen["evictions"] * PAGE == seen["to_host"]["migration"], seen
        assert seen["faults"] * PAGE == seen["to_device"]["migration"], seen


def check_copies_count_what_leaves_its_own_memory() -> None:
    plain = torch.empty(4 * PAGE, dtype=torch.uint8, device="cuda")
    with block(4 * PAGE, *WITH_CPU) as data, block(4 * PAGE, *ON_GPU) as near:
        data.zero_()
        near.zero_()
        host = torch.zeros(4 * PAGE, dtype=torch.uint8).pin_memory()
        for call, inward, outward in (
            (lambda: plain.copy_(data), 4 * PAGE, 0),
            (lambda: data.copy_(plain), 0, 4 * PAGE),
            (lambda: data[:10].copy_(plain[:10]), 0, 10),
            (lambda: plain.copy_(near), 0, 0),
            (lambda: near.copy_(data), 4 * PAGE, 0),
            (lambda: plain.copy_(host), 4 * PAGE, 0),
            (lambda: host.copy_(plain), 0, 4 * PAGE),
        ):
            before = total()
            call()
            seen = added(before)
            assert (seen["to_device"]["copy"], seen["to_host"]["copy"]) == (inward, outward), seen
            assert seen["faults"] == 0, seen


def check_steps_are_what_lies_between_two_marks() -> None:
    mark_step()
    marked = len(read_traffic()["steps"])
    with block(2 * PAGE, *WITH_CPU) as data:
        data.zero_()
        mark_step()
        data.sum()
        mark_step()
        mark_step()
    steps = read_traffic()["steps"][marked:]
    assert [step["to_device"]["remote"] for step in steps] == [0, 2 * PAGE, 0], steps
    weight = torch.nn.Parameter(torch.ones(4, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    assert len(read_traffic()["steps"]) == marked + 4


def check_a_cpu_write_has_no_part_in_it() -> None:
    with block(2 * PAGE, *WITH_CPU) as data:
        before = total()
        ctypes.memset(data.data_ptr(), 1, 2 * PAGE)
        assert added(before)["to_device"] == {"copy": 0, "remote": 0, "migration": 0}
