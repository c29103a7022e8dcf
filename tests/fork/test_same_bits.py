"""The real trainer on a tiny model, same seed: off is upstream to the bit, and features that move data change no bit."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import tiny

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

IN_RAM = {"type": "in_memory", "in_memory": {"compression": "zstd"}}
UNIFIED = {"vae_cache_type": "unified_memory", "text_cache_type": "unified_memory"}
STEPS = {"max_train_steps": 8, "gradient_accumulation_steps": 2, "checkpoint_step_interval": 4}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tiny.Lab]:
    lab = tiny.Lab(tmp_path_factory.mktemp("bits"))
    lab.add_shapes()
    yield lab


def train(lab: tiny.Lab, name: str, *, kind: dict[str, Any] | None = None, code: int = 0, **more: Any) -> tiny.Run:
    """A cold run: encoding the caches draws random numbers, so cold is compared with cold."""
    lab.forget_caches()
    lab.entry_changes = {"crop": False, **(kind or {})}
    run = lab.run(name, **STEPS, **more)
    assert run.code == code, run.log[-4000:]
    return run


def bits(run: tiny.Run) -> tuple[list[str], list[str], dict[str, str]]:
    losses = [entry["loss"] for entry in run.trace if "loss" in entry]
    return losses, run.updates(), tiny.digests(run.output / "checkpoint-8")


@pytest.fixture(scope="module")
def plain(lab: tiny.Lab) -> tiny.Run:
    return train(lab, "plain")


def test_features_off_is_upstream_to_the_bit(lab: tiny.Lab, plain: tiny.Run) -> None:
    upstream = train(lab, "upstream", tree=tiny.PRISTINE)
    assert bits(plain) == bits(upstream)
    assert len(bits(plain)[0]) == 16 and len(set(bits(plain)[1])) == 8 and bits(plain)[2]
    assert "GH200" not in plain.log
    (listed,) = (lab.folder / "data" / "shapes").glob("aspect_ratio_bucket_indices*.json")
    assert len(json.loads(listed.read_text())["aspect_ratio_bucket_indices"]) == 4


@pytest.fixture(scope="module")
def featured(lab: tiny.Lab) -> tiny.Run:
    return train(lab, "featured", kind=IN_RAM, cache_config=UNIFIED)


def test_in_memory_data_and_unified_caches_change_no_bit(featured: tiny.Run, plain: tiny.Run) -> None:
    assert bits(featured) == bits(plain)
    assert "Staged 24 files" in featured.log and "GH200 memory summary" in featured.log


def test_a_killed_and_resumed_run_equals_the_one_that_was_not_interrupted(lab: tiny.Lab, featured: tiny.Run) -> None:
    killed = train(lab, "killed", kind=IN_RAM, cache_config=UNIFIED, drive={"kill_at": 12}, code=-signal.SIGKILL)
    assert (killed.output / "checkpoint-4").is_dir() and not (killed.output / "checkpoint-8").exists()
    resumed = lab.run("resumed", resume="killed", **STEPS, cache_config=UNIFIED)
    assert resumed.code == 0, resumed.log[-4000:]
    assert resumed.updates() == featured.updates()[4:]
    assert tiny.digests(resumed.output / "checkpoint-8") == tiny.digests(featured.output / "checkpoint-8")
