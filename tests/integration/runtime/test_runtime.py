"""One run per process at a time: everything it holds has one beginning and one end, and the next one starts clean."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from simpletuner.gh200.backends.ram.hooks import is_in_memory, local_entries
from simpletuner.gh200.backends.tensors import hooks
from simpletuner.gh200.backends.tensors.directories import PrivateDirectory
from simpletuner.gh200.config.cache_options import CacheOptions
from simpletuner.gh200.config.sources import read_settings
from simpletuner.gh200.memory import hints
from simpletuner.gh200.memory.batch import optimize_batch_for_gh200
from simpletuner.gh200.runtime import Run, begin, current, end
from simpletuner.gh200.state import StateHooks
from simpletuner.gh200.trainer import TrainerHooks
from tests.support.fake_cache_backend import DirectoryBackend, tiered

ALL_ON = {
    "cache_config": {"vae_cache_type": "unified_memory", "persistent_cache": False},
    "gh200_optimizations": {"enable_uvm_hints": True},
}
PHOTOS = {"id": "photos", "type": "in_memory", "instance_data_dir": "/data"}


@pytest.fixture(autouse=True)
def _no_run_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIMPLETUNER_GH200_ENABLE_UVM_HINTS", raising=False)
    monkeypatch.setattr(hints.Hints, "override", None)
    end()


def configured(directory: Path, raw: dict[str, object]) -> TrainerHooks:
    """A Trainer as far as the configuration."""
    StateHooks.set_raw_config(raw)
    trainer = TrainerHooks()
    trainer.config = SimpleNamespace(output_dir=str(directory), data_backend_config=None)
    trainer._configure_gh200_runtime()
    return trainer


def test_a_second_trainer_in_one_process_starts_clean(tmp_path: Path) -> None:
    configured(tmp_path, ALL_ON | {"cache_config": ALL_ON["cache_config"] | {"cache_dir": str(tmp_path)}})
    first = current()
    assert first is not None
    directory = first.part(PrivateDirectory).path
    cache = tiered(DirectoryBackend())
    torch.save(torch.ones(4), tmp_path / "1.pt")
    latent = cache.torch_load(str(tmp_path / "1.pt"))
    hooks.placed_latent(latent)
    local_entries([PHOTOS])
    optimize_batch_for_gh200({"latents": latent})
    assert directory.is_dir() and hooks.known_finite(latent) and is_in_memory(SimpleNamespace(id="photos"))
    assert first.hints.steps == 1

    configured(tmp_path, {"model_family": "sdxl"})
    assert current() is None and StateHooks.get_gh200_runtime_config() == {}
    assert not directory.exists() and not hooks.known_finite(latent) and not hints.gh200_uvm_enabled()
    assert not is_in_memory(SimpleNamespace(id="photos"))
    assert latent.eq(1).all()

    configured(tmp_path, ALL_ON)
    third = current()
    assert third is not None and third is not first
    assert third.hints.steps == 0 and third.part(hooks.TensorCaches).store is None


def test_what_a_feature_leaves_to_the_end_is_done_once_newest_first() -> None:
    run, said = Run(read_settings({}, {}), CacheOptions()), []
    for name in ("first", "second"):
        run.at_end(lambda name=name: said.append(name))
    run.end()
    run.end()
    assert said == ["second", "first"]


def test_a_feature_that_cannot_end_does_not_keep_the_others_from_it() -> None:
    run, said = begin(read_settings({}, {}), CacheOptions()), []
    run.at_end(lambda: said.append("ended"))
    run.at_end(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        end()
    assert said == ["ended"]
    end()
    assert current() is None


def test_a_forked_child_ends_without_its_parents_things(tmp_path: Path) -> None:
    run = begin(read_settings({}, {}), CacheOptions(cache_dir=str(tmp_path)))
    directory = run.part(PrivateDirectory).path
    child = os.fork()
    if not child:
        end()
        os._exit(0)
    os.waitpid(child, 0)
    assert directory.is_dir()
    end()
    assert not directory.exists()
