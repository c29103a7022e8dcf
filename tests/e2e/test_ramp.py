"""The ramp in the real fork: a tiny model, two datasets, each scenario a training process of its own."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from tiny import PRISTINE, Lab

from gh200_lab.tiny.run import Run, weights
from simpletuner.gh200.ramp.schedule import GH200GradientRamp

pytestmark = [
    pytest.mark.slow(reason="eleven trainings in processes of their own"),
    pytest.mark.timeout(1800),
]

# 11 micro-batches an epoch: the first two epochs end inside windows 7 and 10.
IMAGES = {"first": 7, "second": 4}
RAMP = {
    "enable_batch_size_rampup": True,
    "initial_effective_batch_size": 1,
    "target_effective_batch_size": 4,
    "batch_rampup_steps": 12,
}
SCHEDULE = GH200GradientRamp(1, 4, 12)
WINDOWS = [1, 1, 1, 1, 1, 2, 2, 3, 4, 4, 4, 4]
STEPS = {"max_train_steps": len(WINDOWS), "checkpoint_step_interval": 8}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    lab = Lab(tmp_path_factory.mktemp("ramp"))
    for name, images in IMAGES.items():
        lab.add_dataset(name, images)
    # A cold run fills the caches, and cold and warm runs must not be compared.
    assert lab.watched("warm-up", max_train_steps=1).code == 0
    return lab


@pytest.fixture(scope="module")
def whole(lab: Lab) -> Run:
    run = lab.watched("whole", gh200_optimizations=RAMP, **STEPS)
    assert run.code == 0, run.text[-3000:]
    return run


def test_the_windows_are_the_schedules(whole: Run) -> None:
    assert whole.watched_windows() == WINDOWS == [SCHEDULE.accumulation_steps(window) for window in range(len(WINDOWS))]
    assert len(whole.micro_losses()) == SCHEDULE.micro_batches_for(len(WINDOWS))
    assert whole.text.count("GH200 gradient accumulation ramp enabled") == 1
    for text in (whole.text, (whole.output / "debug.log").read_text()):
        changes = [line.split("-> ")[1][0] for line in text.splitlines() if "GH200 ramp adjusted" in line]
        assert changes == ["2", "3", "4"]
    assert "accum=4, eff_batch=4" in whole.text


def test_windows_set_by_hand_on_plain_upstream_give_the_same_updates(lab: Lab, whole: Run) -> None:
    assert PRISTINE.is_dir(), f"the plain upstream tree is missing: {PRISTINE}"
    hand = lab.watched("hand", tree=PRISTINE, gradient_accumulation_steps=4, orders={"windows": WINDOWS}, **STEPS)
    assert hand.code == 0, hand.text[-3000:]
    assert hand.watched_windows() == WINDOWS
    assert hand.updates() == whole.updates()
    assert hand.micro_losses() == whole.micro_losses()
    assert weights(hand.output) == weights(whole.output)


def test_killed_between_checkpoints_and_resumed_it_is_the_same_run(lab: Lab, whole: Run) -> None:
    checkpoint = STEPS["checkpoint_step_interval"]
    inside = SCHEDULE.micro_batches_for(checkpoint + 1) + 2
    killed = lab.watched("killed", gh200_optimizations=RAMP, orders={"kill_at": inside}, **STEPS)
    assert killed.code == -signal.SIGKILL
    assert killed.updates() == whole.updates()[: checkpoint + 1]
    record = json.loads((killed.output / f"checkpoint-{checkpoint}" / "gh200_ramp.json").read_text())
    # Otherwise upstream's own restart of the counter would do, and this test would show nothing.
    assert record["micro_step"] > SCHEDULE.micro_batches_for(checkpoint) > checkpoint
    resumed = lab.watched("resumed", resume="killed", gh200_optimizations=RAMP, **STEPS)
    assert resumed.code == 0, resumed.text[-3000:]
    assert resumed.updates() == whole.updates()[checkpoint:]
    assert resumed.micro_losses() == whole.micro_losses()[SCHEDULE.micro_batches_for(checkpoint) :]
    assert weights(resumed.output) == weights(whole.output)


def test_a_changed_ramp_stops_the_resume_and_keeps_the_checkpoint(lab: Lab, whole: Run) -> None:
    longer = lab.watched(
        "changed",
        resume="whole",
        gh200_optimizations={**RAMP, "batch_rampup_steps": 13},
        delete_invalid_checkpoints=True,
        resume_from_checkpoint="checkpoint-8",
        **STEPS,
    )
    assert longer.code not in (0, None)
    assert "batch_rampup_steps: 12 in the checkpoint, 13 now" in longer.text
    assert longer.trace == []
    assert weights(longer.output / "checkpoint-8") == weights(whole.output / "checkpoint-8")


def test_epochs_give_the_schedules_steps_and_an_open_window_starts_again(lab: Lab) -> None:
    """One epoch's checkpoint lies inside window 7; the run goes on from it for a second epoch."""
    batches = sum(IMAGES.values())
    asked = {"gh200_optimizations": RAMP, "max_train_steps": 0, "checkpoint_epoch_interval": 1}
    run = lab.watched("epochs", num_train_epochs=2, **asked)
    assert run.code == 0, run.text[-3000:]
    assert len(run.updates()) == SCHEDULE.steps_for(2 * batches) == 10
    step, place = SCHEDULE.locate(batches)
    record = json.loads((run.output / f"checkpoint-{step}" / "gh200_ramp.json").read_text())
    assert (record["place_in_window"], record["micro_step"]) == (place, batches + 1)
    again = lab.watched(
        "again", resume="epochs", resume_from_checkpoint=f"checkpoint-{step}", num_train_epochs=2, **asked
    )
    assert again.code == 0, again.text[-3000:]
    assert f"inside window {step}; the window starts again" in again.text
    assert again.watched_windows() == WINDOWS[step : step + len(again.watched_windows())]


def test_manual_requests_and_step_validation_keep_to_the_windows(lab: Lab) -> None:
    """Both are asked for in the middle of a window: validation at once, the checkpoint when the window closes."""
    validation = {
        "validation_disable": False,
        "validation_prompt": "an image",
        "validation_step_interval": 4,
        "validation_num_inference_steps": 1,
        "validation_resolution": "64x64",
        "validation_guidance": 1.0,
        "disable_benchmark": True,
    }
    first = {window: SCHEDULE.micro_batches_for(window) for window in (7, 9)}
    asked = {str(first[7] + 1): "manual_validation", str(first[9] + 1): "manual_checkpoint"}
    run = lab.watched(
        "manual",
        gh200_optimizations=RAMP,
        orders={"ask": asked},
        **{**STEPS, "checkpoint_step_interval": 1000, **validation},
    )
    assert run.code == 0, run.text[-3000:]
    assert run.watched_windows() == WINDOWS
    assert [path.name for path in run.output.glob("checkpoint-*")] == ["checkpoint-10"]
    record = json.loads((run.output / "checkpoint-10" / "gh200_ramp.json").read_text())
    assert record["place_in_window"] == 0
    assert validated_steps(run.output) == {4, 7, 8, 12}


def validated_steps(output: Path) -> set[int]:
    return {int(path.name.split("_")[1]) for path in (output / "validation_images").glob("step_*.png")}


def test_switched_off_the_fork_is_bit_identical_to_upstream(lab: Lab) -> None:
    plain = {"gradient_accumulation_steps": 3, "max_train_steps": 5}
    fork = lab.watched("off", gh200_optimizations={"enable_batch_size_rampup": False}, **plain)
    upstream = lab.watched("upstream", tree=PRISTINE, **plain)
    assert (fork.code, upstream.code) == (0, 0), fork.text[-2000:] + upstream.text[-2000:]
    assert fork.trace == upstream.trace
    assert weights(fork.output) == weights(upstream.output)
