"""The tensor arena in managed memory of the simulated driver: advice, order of frees, rejected allocations."""

from __future__ import annotations

from tests.cuda_sim.processes import Machine, read_log

ON_THE_DRIVER = """
import torch
from gh200_lab.memory_run import begin_memory_run
from simpletuner.gh200.memory import hints
from simpletuner.gh200.backends.tensors.blocks import ArenaFull, CacheBudget
from simpletuner.gh200.memory.batch_copy import CudaBytes
from simpletuner.gh200.config.cache_options import CacheOptions
from simpletuner.gh200.backends.tensors.arena import TensorArena
begin_memory_run(CacheOptions(hints=True))
arena = TensorArena(CacheBudget(None), "device", 2 << 20)
assert arena.managed
"""


def test_managed_blocks_are_advised_once_and_freed_newest_first(machine: Machine) -> None:
    machine.run(
        ON_THE_DRIVER
        + """
slots = [arena.hold(torch.full((1 << 18,), float(n))) for n in range(4)]
assert [slot.tensor[-1].item() for slot in slots] == [0, 1, 2, 3]
block = slots[3].block
interface = CudaBytes(block.buffer, block.pointer + slots[3].offset, slots[3].span).__cuda_array_interface__
assert interface["data"] == (slots[3].tensor.data_ptr(), False) and interface["shape"] == (1 << 20,)
del slots
assert arena.close() == 0
"""
    )
    assert len(machine.calls("cuMemAllocManaged")) == 2
    assert [call["bytes"] for call in machine.calls("cuMemAdvise_v2")] == [str(2 << 20)] * 4
    advised = [call["pointer"] for call in machine.calls("cuMemAdvise_v2")][::2]
    assert [call["pointer"] for call in machine.calls("cuMemFree_v2")] == advised[::-1]


def test_blocks_in_use_stay_readable_and_are_freed_after_the_last_tensor(machine: Machine) -> None:
    machine.run(
        ON_THE_DRIVER
        + """
from simpletuner.gh200.memory.driver import load_driver
view = arena.hold(torch.full((1 << 18,), 5.0)).tensor.detach()
assert arena.close() == 1
assert view.eq(5).all()
load_driver().memory_info(0)
del view
"""
    )
    names = [name for name, _ in read_log(machine.log) if name in ("cuMemGetInfo_v2", "cuMemFree_v2")]
    assert names[-2:] == ["cuMemGetInfo_v2", "cuMemFree_v2"], names


def test_closes_when_the_driver_is_already_gone(machine: Machine) -> None:
    machine.run(
        ON_THE_DRIVER + "arena.hold(torch.ones(4)); assert arena.close() == 0", fail="cuMemFree_v2", fail_code=4
    )


def test_managed_memory_rejected_is_a_full_arena(machine: Machine) -> None:
    machine.run(
        ON_THE_DRIVER
        + """
kept = [arena.hold(torch.ones(1 << 18)) for _ in range(2)]
try:
    arena.hold(torch.ones(1 << 18))
    raise SystemExit("expected a full arena")
except ArenaFull as error:
    assert "CUDA_ERROR_OUT_OF_MEMORY" in str(error)
assert arena.stats().tensors == 2
""",
        managed=3 << 20,
    )
