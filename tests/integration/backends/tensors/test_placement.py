"""How cached latents get to the GPU: the choice from timings, who has which bytes. No GPU here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gh200_lab.memory_run import begin_memory_run, store, tensor_caches
from simpletuner.gh200.backends.tensors import hooks
from simpletuner.gh200.backends.tensors.blocks import ArenaFull, CacheBudget
from simpletuner.gh200.backends.tensors.placement import CHOICES, Placement, fastest
from simpletuner.gh200.config.cache_options import CacheOptions
from simpletuner.gh200.config.problems import SettingsError
from simpletuner.gh200.config.sources import read_settings
from simpletuner.gh200.memory.transfer_paths import TransferPath
from simpletuner.gh200.preflight.config import latent_batch
from simpletuner.gh200.runtime import end
from tests.support.fake_cache_backend import DirectoryBackend, tiered, unified

MB = 1 << 20


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    yield
    end()


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        ({"managed": 1.0, "pinned": 2.0, "hbm": 3.0, "stock": 0.1}, "managed"),
        ({"managed": 2.0, "pinned": 1.0, "hbm": 3.0, "stock": 0.1}, "pinned"),
        ({"managed": 3.0, "pinned": 2.0, "hbm": 1.0, "stock": 0.1}, "hbm"),
        ({"managed": 1.0, "pinned": 1.05, "hbm": 3.0}, "pinned"),
        ({"managed": 1.0, "pinned": 1.06, "hbm": 3.0}, "managed"),
        ({"managed": 3.0, "pinned": 1.04, "hbm": 1.0}, "pinned"),
        ({"managed": 1.0, "hbm": 1.01}, "managed"),
        ({"stock": 1.0}, None),
        ({}, None),
    ],
)
def test_placement_is_the_fastest_and_plain_ram_wins_ties(
    seconds: dict[TransferPath, float], chosen: TransferPath | None
) -> None:
    assert fastest(seconds, CHOICES) == chosen


def test_chooses_among_the_ways_there_are() -> None:
    seconds: dict[TransferPath, float] = {"managed": 1.0, "pinned": 2.0, "hbm": 1.5}
    assert fastest(seconds, ["pinned", "hbm"]) == "hbm" and fastest(seconds, ["pinned"]) == "pinned"


@pytest.mark.parametrize("asked", ["auto", "managed", "pinned", "hbm"])
def test_measures_nothing_on_a_cpu(asked: Any, tmp_path: Path) -> None:
    run = begin_memory_run(unified(placement=asked))
    placement = run.part(Placement)
    placement.measure = lambda *_: pytest.fail("measured")
    hooks.decide_placement(run, torch.device("cpu"), MB, 4)
    torch.save(torch.ones(8), tmp_path / "x.pt")
    latent = tiered(DirectoryBackend()).torch_load(str(tmp_path / "x.pt"))
    assert hooks.placed_latent(latent) is latent and hooks.moved_together([latent])[0] is latent
    assert not tensor_caches().report()["caches"]["managed"] and tensor_caches().batches is None
    assert "no GPU" in run.snapshot()["measured"]["Cache placement"]["reason"]


def test_placement_is_not_asked_for_without_a_cache() -> None:
    run = begin_memory_run(CacheOptions(hints=True))
    hooks.decide_placement(run, torch.device("cuda"), MB, 4)
    assert "Cache placement" not in run.measured


@pytest.mark.parametrize("value", ["ram", "", 1, True, ["pinned"], "Pinned"])
def test_rejects_other_words(value: Any) -> None:
    with pytest.raises(SettingsError, match=r"cache_config.placement"):
        read_settings({"cache_config": {"placement": value}}, {})


def test_setting_reaches_the_caches() -> None:
    block = {"vae_cache_type": "unified_memory"}
    assert CacheOptions.from_settings(read_settings({"cache_config": block}, {})).placement == "auto"
    settings = read_settings({"cache_config": block | {"placement": "hbm"}}, {})
    assert CacheOptions.from_settings(settings).placement == "hbm"


@pytest.mark.parametrize(
    ("entries", "config", "expected"),
    [
        ([{"resolution": 1024}], {"train_batch_size": 32}, (32 * 512 * 1024, 32)),
        ([{"resolution": 1.0, "resolution_type": "area"}], {"train_batch_size": 2}, (1_000_000, 2)),
        ([{}, {"resolution": 512, "train_batch_size": 16}], {"train_batch_size": 1, "resolution": 256}, (2 * MB, 16)),
        ([{"dataset_type": "text_embeds", "resolution": 9999}], {"train_batch_size": "4"}, (4 * 512 * 1024, 4)),
        ([{"resolution": 512, "video": {"num_frames": 81}}], {"train_batch_size": 1}, (20 * 128 * 1024, 1)),
        ([{"resolution": "nonsense"}, "no entry", {"resolution": float("inf")}], {}, (512 * 1024, 1)),
    ],
)
def test_knows_about_how_large_a_batch_is(
    entries: list[Any], config: dict[str, Any], expected: tuple[int, int]
) -> None:
    assert latent_batch(entries, config) == expected


def test_limits_the_operators_own_bound_is_not_the_pools() -> None:
    pools = 0
    budget = CacheBudget(4 * MB, 20 * MB, lambda: pools)
    budget.take(3 * MB)
    pools = 15 * MB
    budget.take(MB)
    assert budget.excess() == 0
    with pytest.raises(ArenaFull, match="4194304 bytes beside 15728640 of torch's pools"):
        budget.take(1)
    pools = 18 * MB
    assert budget.excess() == 2 * MB and budget.limit == 2 * MB
    pools = 99 * MB
    assert budget.excess() == 4 * MB and budget.limit == 0


def test_entries_are_dropped_when_pools_grow(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One budget, pools first: the entries that came last go, with the memory they were in."""
    run = begin_memory_run(unified())
    caches, pools = store(), [0]
    caches._budget = CacheBudget(None, 64 * MB, lambda: pools[0])
    caches.arena("device")._block_size = 4 * MB
    backend = DirectoryBackend()
    tier = tiered(backend)
    for number in range(16):
        torch.save(torch.full((2 * MB,), number, dtype=torch.uint8), tmp_path / f"{number}.pt")
        assert tier.torch_load(str(tmp_path / f"{number}.pt"))[0] == number
    stats = caches.stats()["device"]
    assert caches._budget.used == stats.reserved_bytes == 32 * MB
    hooks.micro_batch_begins(0)
    assert caches.counts["dropped_for_pools"] == 0
    pools[0] = 44 * MB
    reading = tier.torch_load(str(tmp_path / "15.pt"))
    hooks.micro_batch_begins(1)
    assert reading.eq(15).all(), "what somebody reads stays as it is"
    assert caches.counts["dropped_for_pools"] == 6 and "come first" in caplog.text
    del reading
    hooks.micro_batch_begins(2)
    stats = caches.stats()["device"]
    assert caches._budget.used == stats.reserved_bytes == 20 * MB, "the rest of the bound, and no more was dropped"
    assert caches.counts["dropped_for_pools"] == 6
    before = backend.loads.total()
    assert all(tier.torch_load(str(tmp_path / f"{number}.pt"))[-1] == number for number in range(16))
    assert backend.loads.total() - before == 6, "what does not fit is read from disk"
    assert run.snapshot()["measured"]["Unified memory"]["caches"]["counts"]["dropped_for_pools"] == 6
