"""The real trainer on a tiny model, same seed: features that are off or only move data give bit-identical results."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
import tiny
from preloaded import Preloaded

from gh200_lab.tiny.config import UNIFIED
from gh200_lab.tiny.run import Run, weights

pytestmark = pytest.mark.timeout(900)

IN_RAM = {"type": "in_memory", "in_memory": {"compression": "zstd"}}
STEPS = {"max_train_steps": 8, "gradient_accumulation_steps": 2, "checkpoint_step_interval": 4}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, forked: Preloaded) -> tiny.Lab:
    return tiny.Lab(tmp_path_factory.mktemp("bits"), forked)


def train(lab: tiny.Lab, name: str, *, kind: dict[str, Any] | None = None, code: int = 0, **more: Any) -> Run:
    """A cold run: encoding the caches draws random numbers, so cold is compared with cold."""
    lab.entry_changes = kind or {}
    run = lab.watched(name, cold=True, **STEPS, **more)
    assert run.code == code, run.text[-4000:]
    return run


def bits(run: Run) -> tuple[list[str], list[str], dict[str, str]]:
    return run.micro_losses(), run.updates(), weights(run.output / "checkpoint-8")


@pytest.fixture(scope="module")
def plain(lab: tiny.Lab) -> Run:
    """In a process of its own, like the run of the pristine tree that it is compared with."""
    return train(lab, "plain", launcher=tiny.CPU)


def test_features_off_is_bit_identical_to_upstream(lab: tiny.Lab, plain: Run) -> None:
    upstream = train(lab, "upstream", tree=tiny.PRISTINE, launcher=tiny.CPU)
    assert bits(plain) == bits(upstream)
    assert len(bits(plain)[0]) == 16 and len(set(bits(plain)[1])) == 8 and bits(plain)[2]
    assert "GH200" not in plain.text
    (listed,) = (lab.directory / "images").glob("aspect_ratio_bucket_indices*.json")
    assert len(json.loads(listed.read_text())["aspect_ratio_bucket_indices"]) == 4


@pytest.fixture(scope="module")
def featured(lab: tiny.Lab) -> Run:
    return train(lab, "featured", kind=IN_RAM, cache_config=UNIFIED)


def test_in_memory_data_and_unified_caches_are_bit_identical(featured: Run, plain: Run) -> None:
    assert bits(featured) == bits(plain)
    assert "Staged 24 files" in featured.text and "GH200 memory summary" in featured.text


def test_a_killed_and_resumed_run_equals_the_uninterrupted_one(lab: tiny.Lab, featured: Run) -> None:
    killed = train(lab, "killed", kind=IN_RAM, cache_config=UNIFIED, orders={"kill_at": 12}, code=-signal.SIGKILL)
    assert (killed.output / "checkpoint-4").is_dir() and not (killed.output / "checkpoint-8").exists()
    resumed = lab.watched("resumed", resume="killed", launcher=tiny.CPU, **STEPS, cache_config=UNIFIED)
    assert resumed.code == 0, resumed.text[-4000:]
    assert resumed.updates() == featured.updates()[4:]
    assert weights(resumed.output / "checkpoint-8") == weights(featured.output / "checkpoint-8")
