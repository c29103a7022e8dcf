"""Trainings on the CPU: features off beside the pristine tree, each feature, all of them, the ramp, a preempted run."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tiny
from preloaded import Preloaded

from gh200_lab.tiny.config import UNIFIED
from gh200_lab.tiny.run import Run, weights
from tests.golden.records import Records, digest, shape
from tests.golden.v1 import PREEMPTED, RAMP_STEPS, RAMPED, SIGNAL
from tests.golden.workplace import Workplace

pytestmark = [pytest.mark.fork, pytest.mark.timeout(900)]

STEPS = {"max_train_steps": 6, "gradient_accumulation_steps": 2, "checkpoint_step_interval": 3}
IN_MEMORY = {"type": "in_memory", "in_memory": {"compression": "zstd", "memory_limit_gb": 1}}
MEASURED = {"telemetry_interval": 1}
# What moves data: each trains as if it were off.
FEATURES: dict[str, dict[str, Any]] = {
    "hints": {"gh200_optimizations": {"enable_uvm_hints": True}},
    "unified-caches": {"cache_config": UNIFIED},
    "in-memory": {"entry": IN_MEMORY, "gh200_optimizations": MEASURED},
    "telemetry": {"gh200_optimizations": MEASURED},
    "everything": {
        "entry": IN_MEMORY,
        "cache_config": UNIFIED | {"persistent_cache": True},
        "gh200_optimizations": {"enable_uvm_hints": True, "checkpoint_on_signal": True, **MEASURED},
    },
}


def bits(run: Run) -> dict[str, Any]:
    return {
        "losses": run.micro_losses(),
        "updates": digest(run.updates()),
        "weights": digest(weights(run.output)),
    }


def course(run: Run) -> dict[str, Any]:
    """What no instruction set changes."""
    return {"exit": run.code, "windows": run.watched_windows(), "batches": run.batches()}


def ours(run: Run) -> dict[str, Any]:
    """The files of ours below an output directory, each JSON document with its keys and types."""
    found: dict[str, Any] = {}
    for path in sorted(run.output.rglob("gh200_*.json*")):
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        found[path.relative_to(run.output).as_posix()] = shape([json.loads(line) for line in lines])
    return found


def names(run: Run) -> list[str]:
    """All files that a run wrote: SimpleTuner's and ours. `trace.jsonl` is the test's."""
    paths = (path.relative_to(run.output).as_posix() for path in run.output.rglob("*") if path.is_file())
    # Which records of a fast start are written depends on how old the directories are.
    return sorted(path for path in paths if path != "trace.jsonl" and not path.startswith("gh200_start/"))


def check_files(golden: Records, part: str, run: Run) -> None:
    golden.check("files", part, names(run))
    golden.check_shape("schemas", part, ours(run))


@pytest.fixture(scope="module")
def off(place: Workplace, one_process: Preloaded) -> Run:
    return place.train("off", launcher=one_process, cold=True, **STEPS)


def test_off_is_the_pristine_tree(place: Workplace, golden: Records, off: Run) -> None:
    """A cold process of its own: a forked one has the fork's modules."""
    pristine = place.train("pristine", launcher=tiny.CPU, tree=tiny.PRISTINE, cold=True, **STEPS)
    assert (course(off), bits(off)) == (course(pristine), bits(pristine))
    assert len(set(off.updates())) == STEPS["max_train_steps"]
    assert names(off) == names(pristine), "off leaves no file of ours"
    golden.check("trainings", "off", course(off))
    golden.check_bits("bits", "off", bits(off), str(place.directory))
    golden.check("files", "off", names(off))


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_that_moves_data_trains_as_off(
    feature: str, place: Workplace, one_process: Preloaded, golden: Records, off: Run
) -> None:
    run = place.train(feature, launcher=one_process, cold=True, **STEPS | FEATURES[feature])
    assert run.code == 0, run.text[-3000:]
    assert (course(run), bits(run)) == (course(off), bits(off))
    check_files(golden, f"run {feature}", run)
    golden.check("trainings", f"on with {feature}", sorted(run.features()))


@pytest.fixture(scope="module")
def warm(place: Workplace, one_process: Preloaded) -> None:
    """Fills the caches of the two datasets: a cold run and a warm one draw other random numbers."""
    run = place.train("warm-up", launcher=one_process, datasets=True, max_train_steps=1)
    assert run.code == 0, run.text[-3000:]


@pytest.fixture(scope="module")
def ramped(place: Workplace, one_process: Preloaded, warm: None) -> Run:
    return place.train("ramped", launcher=one_process, datasets=True, **RAMP_STEPS | RAMPED)


def test_ramp(place: Workplace, golden: Records, ramped: Run) -> None:
    assert ramped.code == 0, ramped.text[-3000:]
    golden.check("trainings", "ramp", course(ramped))
    golden.check_bits("bits", "ramp", bits(ramped), str(place.directory))
    check_files(golden, "run ramp", ramped)
    record = json.loads((ramped.output / "checkpoint-8" / "gh200_ramp.json").read_text())
    golden.check("trainings", "ramp record at step 8", record)


def test_ramp_with_every_other_feature(place: Workplace, one_process: Preloaded, ramped: Run) -> None:
    ramp = RAMPED["gh200_optimizations"]
    everything = FEATURES["everything"]
    more = everything["gh200_optimizations"] | ramp | {"measure_gradient_noise_scale": True}
    run = place.train(
        "all", launcher=one_process, datasets=True, **RAMP_STEPS | everything | {"gh200_optimizations": more}
    )
    assert run.code == 0, run.text[-3000:]
    assert (course(run), bits(run)) == (course(ramped), bits(ramped))


@pytest.fixture(scope="module")
def preempted(place: Workplace, one_process: Preloaded, warm: None) -> Run:
    return place.train(
        "preempted", launcher=one_process, datasets=True, orders={"signals": [SIGNAL]}, **RAMP_STEPS | PREEMPTED
    )


def test_preempted_and_resumed(
    place: Workplace, one_process: Preloaded, golden: Records, ramped: Run, preempted: Run
) -> None:
    golden.check("trainings", "preempted", course(preempted))
    check_files(golden, "run preempted", preempted)
    resumed = place.train("resumed", launcher=one_process, datasets=True, resume="preempted", **RAMP_STEPS | PREEMPTED)
    assert resumed.code == 0, resumed.text[-3000:]
    assert preempted.updates() + resumed.updates() == ramped.updates()
    assert preempted.micro_losses() + resumed.micro_losses() == ramped.micro_losses()
    golden.check("files", "run resumed", names(resumed))
