"""Cache preload in the real fork: nothing is read from disk during training, and results are bit-identical."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import tiny

from gh200_lab.tiny.config import UNIFIED
from gh200_lab.tiny.launch import Launcher
from gh200_lab.tiny.run import Run, cached, weights

STEPS = {"max_train_steps": 8, "train_batch_size": 2}
ON = {"cache_config": UNIFIED}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> tiny.Lab:
    lab = tiny.Lab(tmp_path_factory.mktemp("preload"))
    lab.add_dataset("squares", 6)
    return lab


def counters(run: Run) -> dict[str, Any]:
    assert run.code == 0, run.text[-3000:]
    return run.end["runtime"]["measured"]["Unified memory"]["caches"]


@pytest.mark.timeout(1800)
def test_neither_the_first_epoch_nor_a_cache_build_reads_from_disk(lab: tiny.Lab) -> None:
    built = lab.watched("built", cold=True, **STEPS, **ON)
    assert counters(built)["disk_reads_in_training"] == 0 and counters(built)["disk_reads"] == 0
    assert counters(built)["counts"]["held_when_written"] >= 12, "six latents, six captions"
    warm = lab.watched("warm", **STEPS, **ON)
    assert counters(warm)["disk_reads_in_training"] == 0 and counters(warm)["preload"]["entries"] >= 12
    assert counters(warm)["hits"] > 0 and not counters(warm)["preload"]["left_out"]
    assert "read ahead" in warm.text


@pytest.mark.slow(reason="two cold trainings")
@pytest.mark.timeout(1800)
def test_training_with_preload_is_bit_identical(lab: tiny.Lab) -> None:
    warm, off = lab.watched("bits-on", **STEPS, **ON), lab.watched("bits-off", **STEPS)
    assert counters(warm)["disk_reads_in_training"] == 0
    assert warm.trace == off.trace and weights(warm.output) == weights(off.output)


@pytest.mark.slow(reason="two cold trainings")
@pytest.mark.timeout(1800)
def test_a_cache_build_gives_upstreams_losses_and_files(lab: tiny.Lab) -> None:
    off = lab.watched("cold-off", cold=True, **STEPS)
    files = cached(lab.directory / "cache")
    on = lab.watched("cold-on", cold=True, **STEPS, **ON)
    assert on.code == off.code == 0 and on.trace == off.trace and cached(lab.directory / "cache") == files


@pytest.mark.slow(reason="four cold trainings")
@pytest.mark.timeout(1800)
def test_a_run_killed_during_preload_starts_again(lab: tiny.Lab) -> None:
    """Killed as soon as the run has begun to read ahead: the caches on disk are as they were, the next run is as ever."""
    assert lab.watched("before", cold=True, **STEPS, **ON).code == 0
    files = cached(lab.directory / "cache")

    def kill(group: int) -> None:
        printed = lab.directory / "printed.log"
        until = time.monotonic() + 600
        while "GH200 settings of this run" not in (printed.read_text() if printed.exists() else ""):
            assert time.monotonic() < until
            time.sleep(0.05)
        os.killpg(group, signal.SIGKILL)

    killed = lab.run("killed", lab.config("off", **tiny.SHORT | STEPS | ON), launcher=tiny.CPU, while_training=kill)
    assert killed.code != 0 and cached(lab.directory / "cache") == files
    again, off = lab.watched("again", **STEPS, **ON), lab.watched("again-off", **STEPS)
    assert counters(again)["disk_reads_in_training"] == 0 and again.trace == off.trace


@pytest.mark.slow(reason="three cold trainings, two of them with two ranks")
@pytest.mark.timeout(1800)
def test_two_ranks_preload_their_own_parts(lab: tiny.Lab) -> None:
    two = Launcher(gpu=False, ranks=2)
    assert lab.watched("scan", cold=True, **STEPS).code == 0
    on = lab.watched("two-on", launcher=two, **STEPS, **ON)
    off = lab.watched("two-off", launcher=two, **STEPS)
    assert off.code == 0 and weights(on.output) == weights(off.output)
    assert counters(on)["disk_reads_in_training"] == 0
    assert counters(on)["preload"]["entries"] < 12 + 2, "half of the latents, all captions"


@pytest.mark.slow(reason="two cold trainings")
@pytest.mark.timeout(1800)
def test_a_text_dataset_that_upstream_adds_obeys_cache_dir(lab: tiny.Lab) -> None:
    parent = lab.directory / "elsewhere"
    for persistent in (True, False):
        config = lab.config("off", **tiny.SHORT | {"max_train_steps": 2})
        config["cache_config"] = {**UNIFIED, "cache_dir": str(parent), "persistent_cache": persistent}
        images = {key: value for key, value in config["datasets"][0].items() if key != "cache_dir_vae"}
        config["datasets"] = [images | {"instance_data_dir": str(lab.directory / "squares")}]
        run = lab.run(f"made-{persistent}", config, launcher=tiny.CPU, cold=True)
        assert run.code == 0, run.text[-3000:]
        kept = {path.relative_to(parent).parts[0] for path in parent.rglob("*.pt")}
        assert kept == ({"vae", "text"}), (kept, json.dumps(config))
        assert not list((lab.directory / "output").rglob("*.pt")) and not list(parent.glob("gh200-run-*"))
        assert not [path for path in Path(run.output).rglob("*.pt") if "cache" in path.parts]
