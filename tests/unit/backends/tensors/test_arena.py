"""The arena: exact bits and strides, exact accounting, places used again only when nobody looks, order at exit."""

from __future__ import annotations

import pytest
import torch

from gh200_lab.memory_run import begin_memory_run
from simpletuner.gh200.backends.tensors import arena as tensor_arena
from simpletuner.gh200.backends.tensors.arena import TensorArena
from simpletuner.gh200.backends.tensors.blocks import ArenaFull, CacheBudget, holdable
from simpletuner.gh200.config.cache_options import CacheOptions
from simpletuner.gh200.memory import hints
from simpletuner.gh200.memory.limits import Limit

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.int8, torch.uint8, torch.int64, torch.uint16, torch.bool, torch.complex64,
]  # fmt: skip
SHAPES = {
    "whole": lambda t: t,
    "transposed": lambda t: t.transpose(0, 2),
    "sliced": lambda t: t[:, 1:3, ::2],
    "scalar": lambda t: t[1, 2, 3],
    "empty": lambda t: t[:0],
    "expanded": lambda t: t[:1].expand(4, 5, 7),
}


@pytest.fixture(autouse=True)
def _hints_on() -> None:
    hints.set_uvm_hint_override(None)
    begin_memory_run(CacheOptions(hints=True))


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_keeps_bits_and_strides(dtype: torch.dtype, shape: str) -> None:
    base = torch.randint(0, 256, (3, 5, 7 * dtype.itemsize), dtype=torch.uint8)
    source = SHAPES[shape]((base & 1).bool() if dtype is torch.bool else base.view(dtype))
    copied = TensorArena(CacheBudget(None), "host").hold(source).tensor
    assert (copied.shape, copied.stride(), copied.dtype) == (source.shape, source.stride(), dtype)
    assert bytes_of(copied) == bytes_of(source)
    if source.numel():
        assert copied.data_ptr() % 256 == 0 and copied.data_ptr() != source.data_ptr()


def test_accounts_for_every_byte() -> None:
    budget = CacheBudget(None)
    arena = TensorArena(budget, "host", 2 << 20)
    slots = [arena.hold(torch.zeros(n, dtype=torch.uint8)) for n in (1, 256, 257, 1000)]
    stats = arena.stats()
    assert (stats.payload_bytes, budget.used, stats.tensors) == (1514, 256 + 256 + 512 + 1024, 4)
    assert stats.reserved_bytes == 2 << 20
    for slot in slots:
        arena.release(slot)
    del slots, slot
    again = arena.hold(torch.zeros(1000, dtype=torch.uint8))
    assert budget.used == 1024 and again.offset == 0


def test_place_is_not_used_again_while_a_view_lives() -> None:
    arena = TensorArena(CacheBudget(None), "host", 2 << 20)
    slot = arena.hold(torch.full((64,), 7.0))
    view = slot.tensor.detach()[3:]
    arena.release(slot)
    del slot
    assert arena.hold(torch.zeros(64)).offset == 256
    assert view.eq(7).all()
    del view
    assert arena.hold(torch.zeros(64)).offset == 0


def test_empty_blocks_serve_other_sizes() -> None:
    arena = TensorArena(CacheBudget(None), "host", 2 << 20)
    for size in (300_000, 500_000, 700_000):
        slots = [arena.hold(torch.zeros(size, dtype=torch.uint8)) for _ in range(4)]
        for slot in slots:
            arena.release(slot)
        del slots, slot
    assert arena.stats().reserved_bytes <= 4 << 20


def test_limit_is_exact_and_shared() -> None:
    budget = CacheBudget(1024)
    one, other = TensorArena(budget, "host"), TensorArena(budget, "device")
    kept = [one.hold(torch.zeros(512, dtype=torch.uint8)), other.hold(torch.zeros(512, dtype=torch.uint8))]
    with pytest.raises(ArenaFull, match="limit of 1024 bytes"):
        one.hold(torch.zeros(1, dtype=torch.uint8))
    assert budget.used == 1024 and len(kept) == 2


def test_leaves_memory_to_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    # No process can make a real machine run out of memory for a test.
    monkeypatch.setattr(tensor_arena, "memory_limits", lambda: [Limit("machine", "free memory", 1 << 20)])
    budget = CacheBudget(None)
    with pytest.raises(ArenaFull, match="free memory"):
        TensorArena(budget, "host").hold(torch.zeros(4))
    assert budget.used == 0


def test_rejects_what_a_view_cannot_stand_for() -> None:
    assert holdable(torch.ones(3))
    others = [
        torch.nn.Parameter(torch.ones(3)),
        torch.ones(3, requires_grad=True),
        torch.ones(3).to_sparse(),
        torch.ones(3, dtype=torch.complex64).conj(),
        torch.ones(3, device="meta"),
    ]
    assert not any(holdable(tensor) for tensor in others)


def test_entries_admitted_in_inference_mode_still_have_versions() -> None:
    with torch.inference_mode():
        slot = TensorArena(CacheBudget(None), "host").hold(torch.ones(3))
        served = slot.tensor.detach()
    served.add_(1)
    assert slot.written_to
