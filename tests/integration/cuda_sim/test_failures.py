"""A driver that fails once, at each call of a scenario in turn: the bytes stay right, and nothing is left."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from tests.cuda_sim.processes import Machine, read_log

LATENTS = 6
SCENARIO = f"""
import os
import torch
from gh200_lab.memory_run import begin_memory_run, store, tensor_caches
from simpletuner.gh200.backends.tensors import hooks
from simpletuner.gh200.memory import hints
from simpletuner.gh200.memory.batch import optimize_batch_for_gh200
from simpletuner.gh200.memory.driver import Driver, load_driver
from simpletuner.gh200.runtime import end
from tests.support.fake_cache_backend import DirectoryBackend, tiered, unified

begin_memory_run(unified(memory_limit=2 << 20))
backend = tiered(DirectoryBackend())
text = tiered(DirectoryBackend("words"), "text")

def right(values):
    assert all(value.eq(n).all() for n, value in enumerate(values)), "wrong bytes"

for epoch in range(2):
    values = [backend.torch_load(f"{{n}}.pt") for n in range({LATENTS})]
    right(values)
    right([text.torch_load("0.pt")])
    for step in range(3):
        hooks.micro_batch_begins(3 * epoch + step)
    for batch in (values[::2], values[1::2]):
        hooks._prefetch(tensor_caches(), batch)
        hooks.moved_together(batch)
        [hooks.known_finite(value) for value in batch]
    optimize_batch_for_gh200({{"latents": values}})
    right(values)
    del values, batch
    store().drop(os.path.abspath("1.pt"))
    right([backend.torch_load("0.pt"), backend.torch_load("1.pt")])
end()
driver = load_driver()
if isinstance(driver, Driver):
    driver.let_go()
"""
PAIRS = {
    "cuMemAllocManaged": "cuMemFree_v2",
    "cuStreamCreate": "cuStreamDestroy_v2",
    "cuEventCreate": "cuEventDestroy_v2",
    "cuDevicePrimaryCtxRetain": "cuDevicePrimaryCtxRelease_v2",
    "cuCtxPushCurrent_v2": "cuCtxPopCurrent_v2",
}


def left(log: Path) -> dict[str, int]:
    """What was made and not given back, by the function that made it."""
    worked = Counter(name for name, call in read_log(log) if call["result"] == "0")
    return {made: worked[made] - worked[gone] for made, gone in PAIRS.items() if worked[made] != worked[gone]}


@pytest.fixture
def scenario(machine: Machine) -> Machine:
    for number in range(LATENTS):
        torch.save(torch.full((40_000,), float(number)), machine.log.parent / f"{number}.pt")
    return machine


def test_failure_at_every_call_of_a_cache_scenario(scenario: Machine) -> None:
    scenario.run(SCENARIO, mode="numa")
    calls = [name for name, _ in read_log(scenario.log)]
    assert left(scenario.log) == {} and "cuMemPrefetchBatchAsync" in calls and len(calls) > 60
    for failing in range(len(calls)):
        scenario.run(SCENARIO, mode="numa", fail="*", fail_after=failing, fail_times=1)
        assert left(scenario.log) == {}, (failing, calls[failing])


@pytest.mark.parametrize("every", [2, 3, 7])
def test_failure_of_every_nth_call_of_a_cache_scenario(scenario: Machine, every: int) -> None:
    scenario.run(SCENARIO, mode="numa", fail_every=every)
    assert left(scenario.log) == {}
