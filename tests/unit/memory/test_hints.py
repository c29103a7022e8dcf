"""Public hints without a driver: the walk of a batch, and what turns hints on."""

from __future__ import annotations

import pytest
import torch

from gh200_lab.memory_run import begin_memory_run
from simpletuner.gh200.config.cache_options import CacheOptions
from simpletuner.gh200.memory import hints
from simpletuner.gh200.memory.batch import batch_tensors, optimize_batch_for_gh200


@pytest.fixture(autouse=True)
def _fresh_state() -> None:
    hints.set_uvm_hint_override(None)
    begin_memory_run(CacheOptions())


@pytest.mark.parametrize("batch", [False, None, {}, []])
def test_empty_batches_pass(batch: object) -> None:
    begin_memory_run(CacheOptions(hints=True))
    assert optimize_batch_for_gh200(batch) is batch
    assert hints.current().report()["steps"] == 0


def test_walk_finds_every_tensor_once() -> None:
    shared = torch.ones(2)
    batch: dict[str, object] = {
        "latents": shared,
        "encoder_hidden_states": torch.ones(1),
        "added_cond_kwargs": {"text_embeds": torch.ones(3), "time_ids": [shared, None, "x"]},
        "conditioning_latents": [(torch.ones(4),), {"waveform": torch.ones(5)}],
        "prompts": ["a", "b"],
    }
    batch["itself"] = batch
    assert sorted(tensor.numel() for tensor in batch_tensors(batch)) == [1, 2, 3, 4, 5]


def test_override_wins_over_the_options_both_ways() -> None:
    assert not hints.gh200_uvm_enabled()
    hints.set_uvm_hint_override(True)
    assert hints.gh200_uvm_enabled()
    begin_memory_run(CacheOptions(hints=True))
    hints.set_uvm_hint_override(False)
    assert not hints.gh200_uvm_enabled()
    hints.set_uvm_hint_override(None)
    assert hints.gh200_uvm_enabled()


def test_options_follow_the_settings() -> None:
    from simpletuner.gh200.config.sources import read_settings

    blocks = {"cache_config": {"vae_cache_type": "unified_memory", "memory_limit_gb": 1.5, "persistent_cache": False}}
    made = CacheOptions.from_settings(read_settings(blocks, {}), upstream_prefetches=True)
    assert made.kinds == {"vae", "image_embed", "distillation"} and made.hints and not made.prefetch
    assert made.memory_limit == 1_500_000_000 and not made.persistent
    off = CacheOptions.from_settings(read_settings(blocks | {"gh200_optimizations": {"enable_uvm_hints": False}}, {}))
    assert not off.kinds and not off.hints
