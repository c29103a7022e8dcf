"""Two ranks train shards of one model with everything on: ramp, datasets in RAM, caches, a signal, the resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.utils import merge_fsdp_weights
from preloaded import Preloaded
from safetensors.torch import load_file
from tiny import Lab

from gh200_lab.tiny.config import UNIFIED
from gh200_lab.tiny.run import Run

pytestmark = [
    pytest.mark.slow(reason="five trainings, four of them with two ranks"),
    pytest.mark.timeout(1800),
]

RANKS, STEPS = 2, 5
WINDOWS = [1, 1, 1, 2, 2]
RAMP = {
    "checkpoint_on_signal": True,
    "enable_batch_size_rampup": True,
    "initial_effective_batch_size": 2,
    "target_effective_batch_size": 4,
    "batch_rampup_steps": 3,
}
SHARDED: dict[str, Any] = {
    "model_type": "full",
    "fsdp_enable": True,
    "fsdp_version": 2,
    "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "use_ema": False,
    "max_train_steps": STEPS,
    "checkpoint_step_interval": STEPS,
    "cache_config": UNIFIED,
    "gh200_optimizations": RAMP,
}
ORDERS = {"shard_on_cpus": True}


class Sharded:
    def __init__(self, lab: Lab, forked: Preloaded) -> None:
        self.lab, self.launcher = lab, Preloaded(place=forked.place, ranks=RANKS)
        self.lab.add_dataset("squares", 8)
        self.lab.entry_changes = {"type": "in_memory", "in_memory": {"compression": "zstd"}}
        # Caches are built by one rank: two that build them at once do not always draw alike.
        warm = self.lab.watched("warm-up", max_train_steps=1, cache_config=UNIFIED)
        assert warm.code == 0, warm.text[-3000:]

    def train(self, name: str, **how: Any) -> Run:
        orders = ORDERS | how.pop("orders", {})
        return self.lab.watched(name, launcher=self.launcher, orders=orders, **SHARDED | how)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory, forked: Preloaded) -> Sharded:
    return Sharded(Lab(tmp_path_factory.mktemp("sharded"), forked), forked)


@pytest.fixture(scope="module")
def whole(sharded: Sharded) -> Run:
    run = sharded.train("whole")
    assert run.code == 0, run.text[-4000:]
    return run


def test_fsdp2_trains_shards_in_the_ramps_windows(whole: Run) -> None:
    counts = [entry["held"] for entry in whole.trace if "held" in entry]
    assert len(counts) == RANKS * STEPS and all(one["shards"] for one in counts)
    assert all(0.4 < one["own"] / one["all"] < 0.6 for one in counts)
    sizes = [entry["accumulation"] for entry in whole.trace if "loss" in entry]
    assert sizes == [size for size in WINDOWS for _ in range(size * RANKS)]
    assert "Staged" in whole.text and "gradient accumulation ramp enabled" in whole.text


def test_fsdp2_preempted_and_requeued(sharded: Sharded, whole: Run) -> None:
    taken = sharded.train("taken", orders={"signals": [{"name": "SIGUSR1", "at": 3, "rank": 1}]})
    marker = json.loads((taken.output / "gh200_left.json").read_text())
    assert marker["rank"] == 1 and (taken.output / marker["checkpoint"]).is_dir()
    again = sharded.train("again", resume="taken")
    assert again.code == 0, again.text[-4000:]
    assert sorted(taken.micro_losses() + again.micro_losses()) == sorted(whole.micro_losses())
    # torch takes an empty step where it loads the shards of an optimizer's state: it is seen, and changes nothing.
    assert {*taken.updates(), *again.updates()} == {*whole.updates()}


def test_fsdp2_a_checkpoint_loads_in_one_process(whole: Run, tmp_path: Path) -> None:
    """Its shards, put together by Accelerate, are the model that the run wrote at its end."""
    shards = whole.output / f"checkpoint-{STEPS}" / "pytorch_model_fsdp_0"
    merge_fsdp_weights(str(shards), str(tmp_path / "merged"))
    (merged,), (written,) = (
        (tmp_path / "merged").glob("*.safetensors"),
        whole.output.glob("pipeline/unet/*.safetensors"),
    )
    found, expected = load_file(merged), load_file(written)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name].to(expected[name].dtype), expected[name]) for name in expected)


def test_fsdp2_rejects_what_was_never_shown_on_shards(sharded: Sharded) -> None:
    run = sharded.train("noise", gh200_optimizations=RAMP | {"measure_gradient_noise_scale": True})
    assert run.code not in (0, None) and run.trace == []
    assert "fsdp_enable: a rank only has a piece of each gradient" in run.text
