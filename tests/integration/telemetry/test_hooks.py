"""Telemetry in a run: a real Accelerator with real trackers, a real thread and real files, in a loop like upstream's."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gh200_lab.place import ROOT
from simpletuner.gh200 import runtime as runs
from simpletuner.gh200.backends.tensors import hooks as cache_sites
from simpletuner.gh200.config.cache_options import CacheOptions
from simpletuner.gh200.config.sources import read_settings
from simpletuner.gh200.state import StateHooks
from simpletuner.gh200.telemetry import recorder
from simpletuner.gh200.telemetry.files import path_of
from simpletuner.gh200.telemetry.loop_clock import LoopClock
from simpletuner.gh200.telemetry.reader import read_directory
from simpletuner.gh200.telemetry.record import Cost, Kind, Record
from simpletuner.gh200.trainer import TrainerHooks
from tests.support.fake_cache_backend import DirectoryBackend, tiered

SLOWLY = {"telemetry_interval": 3600}
ON = {"cache_config": {"vae_cache_type": "unified_memory", "preload": False}, "gh200_optimizations": SLOWLY}
RAMP = {"initial_effective_batch_size": 1, "target_effective_batch_size": 4, "batch_rampup_steps": 6}


class Trainer(TrainerHooks):
    """The parts of upstream's that telemetry meets, around a real Accelerator."""

    def __init__(self, directory: Path, raw: dict[str, Any], *trackers: Any, steps: int = 3) -> None:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        settings = read_settings(raw, {})
        StateHooks.set_raw_config(raw)
        if settings.asked:
            cache_sites.report_caches(runs.begin(settings, CacheOptions.from_settings(settings)))
        self.config = SimpleNamespace(
            output_dir=str(directory / "output"),
            gradient_accumulation_steps=1,
            train_batch_size=2,
            max_train_steps=steps,
        )
        self.accelerator = Accelerator(cpu=True, log_with=list(trackers), project_dir=str(directory))
        self._create_gh200_telemetry(runs.current())
        # Nested, as upstream's settings are.
        self.accelerator.init_trackers("run", {"rate": 0.1, "epochs": {"1": 264}, "none": None} if trackers else None)
        if self._gh200_telemetry is not None:
            self._gh200_telemetry.start()
        self.state = {"global_step": 0, "current_epoch": 1}

    def prepare_batch(self, batch: Any) -> Any:
        return batch

    def train(self) -> None:
        for step in range(1, self.config.max_train_steps + 1):
            self._gh200_count_micro_batch()
            time.sleep(0.02)
            self.prepare_batch(step)
            self._gh200_begin_micro_batch({}, step)
            time.sleep(0.01)
            self.state["global_step"] = step
            self.accelerator.log({"train_loss": 1.0 / step, "learning_rate": 0.1}, step=step)


@pytest.fixture(autouse=True)
def _no_run_is_left() -> Iterator[None]:
    runs.end()
    yield
    runs.end()
    StateHooks.set_raw_config(None)


def records(directory: Path) -> list[Record]:
    return list(read_directory(directory / "output").first.records)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "gh200-telemetry"]


def drawn(directory: Path) -> dict[str, list[float]]:
    events = EventAccumulator(str(directory / "run"))
    events.Reload()
    return {tag: [event.value for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_telemetry_records_start_first_last_and_end_and_says_what_it_took(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = Trainer(tmp_path, ON)
    trainer.train()
    with caplog.at_level("INFO", logger="gh200"):
        runs.end()
    found = records(tmp_path)
    assert [record.kind for record in found] == ["start", "first", "last", "end"]
    assert [record.step for record in found] == [0, 1, 3, 3] and found[-1].total_steps == 3
    assert found[-1].loss == pytest.approx(1 / 3)
    seconds = found[-1].seconds
    assert seconds.micro_batches == 3 and seconds.data >= 0.06 and 0.03 <= seconds.compute < 3
    assert found[-1].host_memory is not None and found[-1].host_memory.resident_bytes > 10_000_000
    cost = found[-1].cost
    assert cost is not None and 0 < cost.cpu_seconds <= cost.wall_seconds
    # The seconds are rounded to a hundredth, the share is not made from the rounded ones.
    least, most = (100 * cost.cpu_seconds / (cost.wall_seconds + wrong) for wrong in (0.006, -0.006))
    assert 0.9 * least <= cost.percent <= 1.1 * most
    said = [one.getMessage() for one in caplog.records if "telemetry" in one.getMessage()]
    assert len(said) == 1 and "4 records in" in said[0] and "%" in said[0]
    assert threads() == []


def test_telemetry_has_the_measurements_of_the_caches(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, ON)
    cache, path = tiered(DirectoryBackend()), str(tmp_path / "1.pt")
    torch.save(torch.ones(5000), path)
    for _ in range(4):
        cache.torch_load(path)
    trainer.train()
    caches = records(tmp_path)[-1].caches
    assert caches is not None and (caches.entries, caches.hits, caches.misses) == (1, 4, 1)
    assert caches.filled_bytes >= 20_000 and caches.arena_bytes >= caches.filled_bytes and not caches.managed


def test_telemetry_joins_what_upstream_gives_its_trackers(tmp_path: Path) -> None:
    Trainer(tmp_path, ON, "tensorboard").train()
    found = drawn(tmp_path)
    assert found["train_loss"] == pytest.approx([1, 1 / 2, 1 / 3])
    # What was measured once is drawn once: at the first and at the last step.
    assert len(found["gh200/resident_gb"]) == 2 and found["gh200/resident_gb"][0] > 0.01
    assert found["gh200/data_seconds"][-1] >= 0.02 and found["gh200/compute_seconds"][-1] >= 0.01


def test_telemetry_counts_an_evaluation_as_compute(tmp_path: Path) -> None:
    """Upstream evaluates between a micro-batch's loss and its end, with batches of its own that it prepares like others."""
    trainer = Trainer(tmp_path, ON)
    trainer._gh200_count_micro_batch()
    trainer.prepare_batch("trained on")
    trainer._gh200_begin_micro_batch({}, 1)
    time.sleep(0.05)
    trainer.prepare_batch("evaluated")
    time.sleep(0.05)
    trainer.accelerator.log({"train_loss": 1.0}, step=1)
    spent = trainer._gh200_telemetry.loop.seconds()
    assert spent.micro_batches == 1 and spent.compute >= 0.1


def test_telemetry_on_a_full_disk_is_said_once_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = path_of(tmp_path / "output", 0)
    path.parent.mkdir()
    path.symlink_to("/dev/full")
    with caplog.at_level("INFO", logger="gh200"):
        trainer = Trainer(tmp_path, ON, "tensorboard")
        trainer.train()
        path.unlink()
        runs.end()
    said = [one.getMessage() for one in caplog.records if "No space left" in one.getMessage()]
    assert len(said) == 1 and "gh200/resident_gb" in drawn(tmp_path)
    (left,) = records(tmp_path)
    assert left.kind == "end" and left.cost is not None and left.cost.lost == 3
    assert any("3 more could not be written" in one.getMessage() for one in caplog.records)


def test_telemetry_a_source_that_fails_is_named_and_the_rest_is_there(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, ON)
    run = runs.current()
    assert run is not None
    run.measure("Something new", lambda: {"figure": 7})
    run.measure("Broken", lambda: {}["no such key"])
    trainer.train()
    last = records(tmp_path)[-1]
    assert "KeyError" in last.problems["Broken"] and last.more["Something new"] == {"figure": 7}
    assert last.host_memory is not None


@pytest.mark.parametrize("raw", [{}, {"gh200_optimizations": {"telemetry_interval": 0}}])
def test_telemetry_off_reads_and_writes_nothing(raw: dict[str, Any], tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, raw)
    log = trainer.accelerator.log
    assert log.__func__ is Accelerator.log and "prepare_batch" not in vars(trainer)
    trainer.train()
    assert threads() == [] and not (tmp_path / "output").exists()


def test_telemetry_off_is_not_even_imported() -> None:
    code = """
import sys
from gh200_lab.checkout import see_this_checkout
see_this_checkout()
from types import SimpleNamespace
from simpletuner.gh200.trainer import TrainerHooks
trainer = TrainerHooks()
trainer.accelerator = SimpleNamespace()
trainer._create_gh200_telemetry(SimpleNamespace(settings=SimpleNamespace(telemetry_interval=0)))
trainer._gh200_count_micro_batch()
print([name for name in sys.modules if "telemetry" in name])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_telemetry_of_a_resumed_run_follows_in_the_same_file(tmp_path: Path) -> None:
    Trainer(tmp_path, ON).train()
    runs.end()
    before = path_of(tmp_path / "output", 0).read_bytes()
    Trainer(tmp_path, ON).train()
    runs.end()
    after = path_of(tmp_path / "output", 0).read_bytes()
    assert after.startswith(before) and len(after.splitlines()) == 8
    assert len(records(tmp_path)) == 4 and len({json.loads(line)["run"] for line in after.splitlines()}) == 2


def test_telemetry_has_the_ramp_in_every_record(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, ON)
    for outline in ([(0, 2), (4, 8)], [(step, step + 1) for step in range(1000)]):
        trainer.gh200_ramp_scheduler = SimpleNamespace(outline=lambda outline=outline: outline)
        trainer._gh200_telemetry._recorder.now("interval", 5.0)
    windows = [record.window for record in records(tmp_path)[-2:]]
    assert windows[0] is not None and windows[0].schedule == [(0, 2), (4, 8)]
    schedule = read_directory(tmp_path / "output").first.schedule
    assert schedule is not None and len(schedule) <= 33 and schedule[0] == (0, 1) and schedule[-1] == (999, 1000)


def test_telemetry_spends_no_more_than_its_share(tmp_path: Path) -> None:
    """A record that is dear makes them rare: the next one comes when its cost, and what the run still owes, is a
    two-hundredth of the time."""

    def dear(kind: Kind, interval: float, cost: Cost) -> Record:
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass
        facts = {"run": "r", "rank": 0, "ranks": 1, "host": "h", "pid": 1, "began": 0.0, "time": 0.0, "step": 0}
        return Record(kind=kind, interval=interval, cost=cost, **facts)

    made = recorder.Recorder(tmp_path / "records", 0.01, dear)
    made.start()
    second = made.now("first", 10.0)
    assert second is not None and second.cost is not None
    spent = second.cost.cpu_seconds
    assert spent >= 0.05
    owed = 4 * spent  # only the first record was made before this one
    assert second.interval == pytest.approx((spent + owed) / 0.005 - second.cost.wall_seconds, rel=0.05)
    made.end()


def test_telemetry_that_hangs_holds_nobody_up(tmp_path: Path) -> None:
    free = threading.Event()

    def hanging(kind: Kind, interval: float, cost: Cost) -> Record:
        free.wait(30)
        raise OSError("the driver is gone")

    made = recorder.Recorder(tmp_path / "records", 10.0, hanging)
    made.start()
    began = time.monotonic()
    assert made.now("first", 0.1) is None and time.monotonic() - began < 5
    free.set()
    made.end()


def test_telemetry_time_of_a_loop_is_split_by_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two micro-batches of one window, then an epoch's end; a second per moment."""
    seconds = itertools.count()
    monkeypatch.setattr("simpletuner.gh200.telemetry.loop_clock.time.monotonic", lambda: float(next(seconds)))
    clock = LoopClock()
    wanted, begins, ended = clock.batch_wanted, clock.micro_batch_begins, clock.micro_batch_ended
    for moment in (wanted, begins, wanted, begins, ended, wanted, wanted):
        moment()
    found = clock.seconds()
    assert (found.micro_batches, found.data, found.compute, found.other) == (2, 2.0, 2.0, 3.0)
