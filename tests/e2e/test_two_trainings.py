"""Two trainings on one machine at once, each with a GPU of its own: neither changes a bit of the other."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cuda_sim_training import Trained, trained
from tiny import Lab

from gh200_lab.tiny.config import UNIFIED
from gh200_lab.tiny.launch import Launcher
from gh200_lab.tiny.run import Run
from tests.cuda_sim.needed import cuda_sim_or_skip

pytestmark = [
    pytest.mark.slow(reason="three trainings on the simulated device, two at once"),
    pytest.mark.timeout(1800),
]

GPUS = 2
CONFIG = {
    "max_train_steps": 3,
    "cache_config": UNIFIED,
    "gh200_optimizations": {"enable_uvm_hints": True, "checkpoint_on_signal": True},
}


def train(lab: Lab, name: str, gpu: int) -> Trained:
    """On a machine with two of them, of which it is given one."""

    def start(name: str, launcher: Launcher, variables: dict[str, str]) -> Run:
        variables = variables | {"CUDA_VISIBLE_DEVICES": str(gpu), "ACCELERATE_MIXED_PRECISION": "bf16"}
        return lab.watched(name, launcher=launcher, cold=True, variables=variables, **CONFIG)

    options = ("--devices", str(GPUS))
    return trained(lab.directory, name, *options, ranks=1, start=start)


def gpu_of(lab: Lab) -> str:
    """Which GPU the caches were measured on, by UUID."""
    (timings,) = (lab.directory / "user-cache" / "simpletuner-gh200").glob("*.json")
    (machine,) = {key.split(",")[0] for key in json.loads(timings.read_text())}
    assert machine.startswith("GPU-")
    return machine


def test_two_trainings_at_once_each_with_its_own_gpu(tmp_path: Path) -> None:
    cuda_sim_or_skip()
    labs = [Lab(tmp_path / name) for name in ("one", "other") if (tmp_path / name).mkdir() is None]
    for lab in labs:
        lab.add_dataset("squares", 6)
        lab.entry_changes = {"type": "in_memory", "in_memory": {"compression": "zstd"}}
    alone = train(labs[0], "alone", 0)
    assert alone.run.code == 0, alone.run.text[-3000:]
    with ThreadPoolExecutor(GPUS) as both:
        one, other = both.map(train, labs, ("together", "together"), range(GPUS))
    assert [run.run.code for run in (one, other)] == [0, 0], other.run.text[-3000:]
    assert one.bits() == alone.bits()
    assert len(other.run.updates()) == CONFIG["max_train_steps"]
    assert gpu_of(labs[0]) != gpu_of(labs[1])
    for run in (one, other):
        assert all(len(report["device_bytes_peak"]) == 1 and not report["violations"] for report in run.trainers)
