"""Public hints on the simulated driver: the calls each makes, its result, and that a driver error never ends the run."""

from __future__ import annotations

import pytest

from tests.cuda_sim.processes import Machine

PREAMBLE = """
import torch
from gh200_lab.memory_run import begin_memory_run
from simpletuner.gh200.memory import hints
from simpletuner.gh200.memory.batch import batch_tensors, optimize_batch_for_gh200
from simpletuner.gh200.config.cache_options import CacheOptions
from simpletuner.gh200.backends.tensors.blocks import CacheBudget
from simpletuner.gh200.memory.driver import *
from simpletuner.gh200.backends.tensors.arena import TensorArena
def start(**options):
    begin_memory_run(CacheOptions(hints=True, **options))
    return TensorArena(CacheBudget(None), "device", 8 << 20)
"""


def test_advice_stays_inside_and_prefetch_covers(machine: Machine) -> None:
    machine.run(
        PREAMBLE
        + """
arena = start()
arena.hold(torch.zeros(100))
cached = arena.hold(torch.randn(100_000)).tensor
pointer, size = cached.data_ptr(), cached.nbytes
assert hints.prefer_gpu_residency(cached) == "applied" and hints.prefer_cpu_residency(cached) == "applied"
assert hints.prefetch_to_device(cached) == "applied"
assert hints.prefer_gpu_residency(arena.hold(torch.zeros(10)).tensor) == "smaller_than_a_page"
print(pointer, size)
"""
    )
    whole = machine.calls("cuMemAdvise_v2")[-1]
    moved = machine.calls("cuMemPrefetchAsync_v2")[0]
    start, size = int(moved["pointer"], 16), int(moved["bytes"])
    inner, inner_size = int(whole["pointer"], 16), int(whole["bytes"])
    assert start < inner and inner + inner_size < start + size
    assert not any(value % 65536 for value in (start, size, inner, inner_size))


def test_counts_what_it_cannot_do(machine: Machine) -> None:
    said = machine.run(
        PREAMBLE
        + """
start()
plain = torch.randn(100_000)
assert hints.prefer_gpu_residency(plain) == hints.prefetch_to_device(plain) == "not_managed"
assert hints.prefetch_to_device(torch.empty(0)) == "not_managed"
hints.set_uvm_hint_override(False)
assert hints.prefetch_to_device(plain) == "off"
print(hints.current().report()["hints"])
"""
    )
    # Above it torch may say that its own runtime finds no more than a driver here.
    assert said.splitlines()[-1] == "{'prefer_gpu': {'not_managed': 1}, 'prefetch': {'not_managed': 2, 'off': 1}}"


def test_system_memory_where_the_gpu_uses_the_host_page_tables(machine: Machine) -> None:
    machine.run(
        PREAMBLE
        + """
start()
plain = torch.randn(100_000)
assert hints.prefer_gpu_residency(plain) == hints.prefetch_to_device(plain) == "applied"
""",
        mode="numa",
    )
    assert {call["result"] for call in machine.calls("cuMemAdvise_v2") + machine.calls("cuMemPrefetchAsync_v2")} == {
        "0"
    }


def test_no_concurrent_access_means_plain_ram_and_no_hints(machine: Machine) -> None:
    machine.run(
        PREAMBLE
        + """
arena = start()
assert not arena.managed
assert hints.prefetch_to_device(arena.hold(torch.ones(9)).tensor) == "unsupported"
""",
        concurrent=0,
    )
    assert not machine.calls("cuMemAllocManaged")


@pytest.mark.parametrize(
    ("pattern", "advice", "prefetches"),
    [
        ("gpu_first", [("3", "2"), ("5", "1"), ("3", "1")], 1),
        ("cpu_first", [("3", "2"), ("5", "1"), ("3", "2")], 0),
        ("balanced", [("3", "2"), ("5", "1")], 1),
    ],
)
def test_policies_in_block_advice_and_batch_hints(
    machine: Machine, pattern: str, advice: list[tuple[str, str]], prefetches: int
) -> None:
    machine.run(
        PREAMBLE
        + f"""
arena = start(access_pattern={pattern!r})
batch = {{"conditioning": [{{"audio_latents": (arena.hold(torch.randn(100_000)).tensor,)}}], "prompts": ["a"], "mask": None}}
assert optimize_batch_for_gh200(batch) is batch
"""
    )
    assert [(call["advice"], call["type"]) for call in machine.calls("cuMemAdvise_v2")] == advice
    assert len(machine.calls("cuMemPrefetchAsync_v2")) == prefetches


def test_prefetch_rejected_is_counted_and_named(machine: Machine) -> None:
    machine.run(
        PREAMBLE
        + """
cached = start().hold(torch.randn(100_000)).tensor
assert [hints.prefetch_to_device(cached) for _ in range(3)] == ["applied", "failed", "failed"]
report = hints.current().report()
assert report["errors"] == {"CUDA_ERROR_NOT_PERMITTED": 2} and report["device_gone"] is None
""",
        fail="cuMemPrefetchAsync_v2", fail_code=800, fail_after=1,
    )  # fmt: skip


def test_vanished_gpu_stops_the_hints_not_the_run(machine: Machine) -> None:
    machine.run(
        PREAMBLE
        + """
cached = start().hold(torch.randn(100_000)).tensor
assert hints.prefetch_to_device(cached) == "failed"
assert hints.prefetch_to_device(cached) == hints.prefer_cpu_residency(cached) == "no_driver"
assert hints.current().report()["device_gone"] == "CUDA_ERROR_DEVICE_UNAVAILABLE"
assert cached.sum().isfinite()
""",
        fail="cuMemPrefetchAsync_v2", fail_code=46,
    )  # fmt: skip
    assert len(machine.calls("cuMemPrefetchAsync_v2")) == 1


def test_environment_decides_before_a_run_is_configured(machine: Machine) -> None:
    ask = """
import os
os.environ.update({env!r})
from simpletuner.gh200.memory import hints
from simpletuner.gh200.memory.batch import batch_tensors, optimize_batch_for_gh200
print(hints.gh200_uvm_enabled(), hints.current().options.access_pattern)
"""
    switched = {"SIMPLETUNER_GH200_ENABLE_UVM_HINTS": "1", "GH200_UVM_ACCESS_PATTERN": "balanced"}
    assert machine.run(ask.format(env=switched)).split() == ["True", "balanced"]
    assert machine.run(ask.format(env={})).split() == ["False", "gpu_first"]
