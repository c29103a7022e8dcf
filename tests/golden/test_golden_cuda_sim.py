"""Trainings on the simulated CUDA device, with one rank and with two: features on beside off, and the recorded losses."""

from __future__ import annotations

from typing import Any

import pytest
from cuda_sim_training import Trained, trained

from gh200_lab.tiny.config import UNIFIED
from gh200_lab.tiny.launch import Launcher
from gh200_lab.tiny.run import Run
from tests.cuda_sim.needed import cuda_sim_or_skip
from tests.golden.records import Records, digest
from tests.golden.workplace import Workplace

pytestmark = [
    pytest.mark.fork,
    pytest.mark.timeout(2400),
    pytest.mark.slow(reason="a minute for each training on the simulated device, three for one with two ranks"),
]

STEPS = {"max_train_steps": 4, "train_batch_size": 2}
IN_MEMORY = {"type": "in_memory", "in_memory": {"compression": "zstd"}}
HINTS = {"enable_uvm_hints": True}
EVERYTHING: dict[str, Any] = {
    "entry": IN_MEMORY,
    "cache_config": UNIFIED | {"placement": "managed"},
    "gh200_optimizations": HINTS,
}
RAMP = {
    "enable_batch_size_rampup": True,
    "initial_effective_batch_size": 2,
    "target_effective_batch_size": 4,
    "batch_rampup_steps": 3,
}
FEATURES: dict[str, dict[str, Any]] = {
    "everything": EVERYTHING,
    "state in managed memory": EVERYTHING | {"gh200_optimizations": HINTS | {"managed_memory": "state"}},
    "all in managed memory": EVERYTHING | {"gh200_optimizations": HINTS | {"managed_memory": "all"}},
}
VARIABLES = {"ACCELERATE_MIXED_PRECISION": "bf16", "CUDA_SIM_RANDOM": "cpu"}


def on_device(place: Workplace, name: str, *, ranks: int = 1, cold: bool = True, **changes: Any) -> Trained:
    def start(name: str, launcher: Launcher, variables: dict[str, str]) -> Run:
        given = VARIABLES | variables
        return place.train(name, launcher=launcher, datasets=True, cold=cold, variables=given, **STEPS | changes)

    ran = trained(place.directory, name.replace(" ", "-"), ranks=ranks, start=start)
    assert ran.run.code == 0, ran.run.text[-4000:]
    return ran


def bits(ran: Trained) -> dict[str, Any]:
    losses, updates, weights = ran.bits()
    return {"losses": losses, "updates": digest(updates), "weights": digest(weights)}


def course(ran: Trained) -> list[list[str]]:
    """Ranks write their batches as they come."""
    return sorted(ran.run.batches())


@pytest.fixture(scope="module")
def off(place: Workplace) -> Trained:
    cuda_sim_or_skip()
    return on_device(place, "device-off")


def test_one_rank(place: Workplace, golden: Records, off: Trained) -> None:
    golden.check("trainings", "simulated device", course(off))
    golden.check_bits("bits", "simulated device", bits(off), str(place.directory))


@pytest.mark.parametrize("feature", FEATURES)
def test_one_rank_with_features(feature: str, place: Workplace, off: Trained) -> None:
    run = on_device(place, f"device-{feature}", **FEATURES[feature])
    assert (course(run), bits(run)) == (course(off), bits(off))


def test_one_rank_with_the_ramp(place: Workplace, golden: Records) -> None:
    cuda_sim_or_skip()
    run = on_device(place, "device-ramp", **EVERYTHING | {"gh200_optimizations": HINTS | RAMP})
    golden.check("trainings", "ramp on the simulated device", run.run.watched_windows())
    golden.check_bits("bits", "ramp on the simulated device", bits(run), str(place.directory))


def test_two_ranks(place: Workplace, golden: Records, off: Trained) -> None:
    """On the caches of a run with one rank: SimpleTuner's ranks race for the images of a new cache."""
    plain = on_device(place, "device-two-off", ranks=2, cold=False)
    everything = on_device(place, "device-two-on", ranks=2, cold=False, **EVERYTHING)
    assert (course(everything), bits(everything)) == (course(plain), bits(plain))
    golden.check("trainings", "two ranks on the simulated device", course(plain))
    golden.check_bits("bits", "two ranks on the simulated device", bits(plain), str(place.directory))
