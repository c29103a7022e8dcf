"""Telemetry of real trainings: what 24 steps leave in files and trackers, a killed and resumed run, two ranks on two GPUs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny
from preloaded import Preloaded
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gh200_lab.tiny.config import UNIFIED
from gh200_lab.tiny.launch import Launcher
from simpletuner.gh200.telemetry.reader import read_directory
from simpletuner.gh200.telemetry.record import Record
from tests.cuda_sim.processes import HERE, CannotBuild, build

pytestmark = pytest.mark.timeout(1800)

STEPS = 24
OFTEN = {"telemetry_interval": 1}
RAMP = {"initial_effective_batch_size": 1, "target_effective_batch_size": 2, "batch_rampup_steps": 20}
# The longest a curve or a page may cost a training, in percent of its time.
MOST_CPU = 0.5


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, forked: Preloaded) -> tiny.Lab:
    return tiny.Lab(tmp_path_factory.mktemp("telemetry"), forked)


def watched(directory: Path) -> dict[str, Any]:
    """As an operator's script asks for it."""
    command = [sys.executable, "-m", "simpletuner.gh200.watch", "--once", "--json", str(directory)]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    state: dict[str, Any] = json.loads(done.stdout)
    return state


def scalars(directory: Path) -> dict[str, int]:
    """How many values each name has in tensorboard's event files."""
    found: dict[str, int] = {}
    for path in directory.rglob("events.out.tfevents*"):
        events = EventAccumulator(str(path))
        events.Reload()
        found |= {tag: len(events.Scalars(tag)) for tag in events.Tags()["scalars"]}
    return found


def test_telemetry_of_24_steps_is_in_files_trackers_and_watch(lab: tiny.Lab) -> None:
    config = lab.config("on", max_train_steps=STEPS, report_to=["tensorboard", "simpletuner"])
    config["gh200_optimizations"] |= OFTEN
    run = lab.run("whole", config, launcher=lab.launcher, cold=True)
    assert run.code == 0 and len(run.steps) == STEPS, run.text[-4000:]
    curves, metrics = scalars(run.output), (run.output / "training_metrics.jsonl").read_text()
    for name in ("resident_gb", "cache_filled_gb", "cache_hits", "data_seconds", "compute_seconds", "datasets_gb"):
        assert curves[f"gh200/{name}"] >= 1 and f'"gh200/{name}"' in metrics, (name, sorted(curves))
    assert curves["gh200/effective_batch_size"] == curves["train_loss"] == STEPS
    records = read_directory(run.output).first.records
    kinds = [record.kind for record in records]
    assert kinds[0] == "start" and kinds[-1] == "end" and kinds.count("first") == kinds.count("last") == 1
    assert "interval" in kinds
    check_end(records[-1], run.steps)
    assert f"GH200 telemetry: {len(records)} records in" in run.text
    state = watched(run.output)
    assert state["state"] == "ended" and state["missing_ranks"] == [] and state["schedule"][0][0] == 0
    assert state["ranks"]["0"]["step"] == STEPS


def check_end(end: Record, steps: list[dict[str, Any]]) -> None:
    assert end.step == end.total_steps == STEPS and end.loss == steps[-1]["loss"] and end.problems == {}
    assert end.window is not None and end.window.effective_batch_size == steps[-1]["effective_batch_size"]
    assert end.seconds.micro_batches == sum(step["gradient_accumulation_steps"] for step in steps)
    assert end.seconds.data > 0 and end.seconds.compute > end.seconds.data
    assert end.caches is not None and end.caches.hits > end.caches.misses_in_training
    assert end.caches.preload is not None and end.caches.preload.finished
    assert set(end.datasets) == {"shapes"} and end.datasets["shapes"].files > 0
    assert end.host_memory is not None and end.host_memory.resident_bytes > 100_000_000
    assert end.cost is not None and end.cost.percent <= MOST_CPU, end.cost
    print(f"telemetry: {end.cost.cpu_seconds:.3f} s of CPU in {end.cost.wall_seconds:.1f} s: {end.cost.percent:.3f} %")


@pytest.mark.slow(reason="three trainings")
def test_telemetry_of_a_killed_run_is_continued_and_losses_are_bit_identical(lab: tiny.Lab) -> None:
    ours = {"gh200_optimizations": {"telemetry_interval": 0.2}}
    steps = {"max_train_steps": 6, "checkpoint_step_interval": 2}
    off = lab.watched("off", cold=True, **steps, gh200_optimizations={"telemetry_interval": 0})
    assert off.code == 0 and not list(off.output.glob("gh200_telemetry*"))
    killed = lab.watched("killed", cold=True, orders={"kill_at": 4}, **steps, **ours)
    assert killed.code == -signal.SIGKILL, killed.text[-3000:]
    before = read_directory(killed.output)
    assert before.first.latest.kind != "end" and before.state(before.first.latest.time + 99) == "silent"
    resumed = lab.watched("resumed", resume="killed", **steps, **ours)
    assert resumed.code == 0, resumed.text[-3000:]
    name = before.first.path.name
    assert (resumed.output / name).read_bytes().startswith((killed.output / name).read_bytes())
    after = read_directory(resumed.output)
    assert after.first.latest.kind == "end" and after.first.latest.run != before.first.latest.run
    assert after.first.records[0].kind == "start" and after.first.other_runs == ()
    watched_losses = killed.micro_losses()[:4] + resumed.micro_losses()
    assert watched_losses == off.micro_losses()


@pytest.mark.slow(reason="two trainings with two ranks on the simulated device")
def test_telemetry_of_two_ranks_on_two_devices(lab: tiny.Lab) -> None:
    try:
        build()
    except CannotBuild as reason:
        pytest.skip(str(reason))
    report = lab.directory / "cuda_sim.jsonl"
    lab.add_dataset("squares", 8)
    launcher = Launcher(gpu=True, ranks=2, prefix=(str(HERE / "run.sh"), "--devices", "2", "--report", str(report)))
    changes = {"max_train_steps": 4, "train_batch_size": 2, "cache_config": UNIFIED | {"placement": "managed"}}
    variables = {"ACCELERATE_MIXED_PRECISION": "bf16", "CUDA_SIM_RANDOM": "cpu", "CUDA_SIM_BACKEND": "gloo"}
    waits = {}
    for name, interval in (("two_off", 0), ("two", 0.5)):
        report.unlink(missing_ok=True)
        ours = {"enable_uvm_hints": True, "telemetry_interval": interval}
        run = lab.watched(name, launcher=launcher, cold=True, variables=variables, gh200_optimizations=ours, **changes)
        assert run.code == 0, run.text[-4000:]
        records = [json.loads(line) for line in report.read_text().splitlines()]
        mine = [one for one in records if any(one.get("device_bytes_peak", ()))]
        assert [one["violations"] for one in mine] == [[], []]
        waits[name] = sum(one["synchronisations"] for one in mine)
    seen = read_directory(run.output)
    assert list(seen.ranks) == [0, 1] and seen.missing == ()
    # A few differ from run to run, with what was cached in time; a record that waits would add one for each. That
    # reading itself neither waits nor copies is tests/cuda_sim/checks/telemetry.py's.
    written = sum(len(rank.records) for rank in seen.ranks.values())
    assert written > 20 and waits["two"] - waits["two_off"] < written / 2, (waits, written)
    for rank, records in seen.ranks.items():
        check_gpu(records.latest, rank)
    assert (run.output / "gh200_telemetry.rank1.jsonl").rename(run.output / "gone")
    assert watched(run.output)["missing_ranks"] == [1]


def check_gpu(end: Record, rank: int) -> None:
    assert (end.kind, end.rank, end.ranks, end.step, end.problems) == ("end", rank, 2, 4, {})
    hbm, managed, caches = end.hbm, end.managed, end.caches
    assert hbm is not None and managed is not None and caches is not None
    assert (
        hbm.device == rank and hbm.used_bytes is not None and hbm.used_bytes + (hbm.free_bytes or 0) == hbm.total_bytes
    )
    assert hbm.reserved_bytes is not None and 0 < (hbm.allocated_bytes or 0) <= hbm.reserved_bytes
    assert caches.managed and managed.kinds["caches"] == caches.arena_bytes
    assert sum(managed.prefers.values()) == sum(managed.prefetched.values()) == managed.bytes > 0
    assert end.copies is not None and end.copies.bytes > 0 and end.hints["cache_prefetch"]["applied"] > 0
    assert end.cost is not None and end.cost.percent <= MOST_CPU, end.cost
