"""The measured ramp: grows when the noise scale says so, and a resumed run decides the same."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from ramp_fake import NOISY, Model, Trainer, fake_state_tracker, noisy_rows, on_two_ranks, rows

from gh200_lab.place import ROOT
from simpletuner.gh200.ramp.noise import LEAST_WINDOWS, SmoothedNoise, WindowNorms
from simpletuner.gh200.ramp.noise_schedule import growth
from simpletuner.gh200.ramp.schedule import GH200GradientRamp, RampError
from tests.integration.ramp.test_accelerate import worst_error

REPO = ROOT
ASKED: dict[str, Any] = {
    "batch_rampup_shape": "measured",
    "initial_effective_batch_size": None,
    "target_effective_batch_size": 12,
    "batch_rampup_steps": 40,
}


@pytest.fixture(autouse=True, scope="module")
def state_tracker() -> Iterator[None]:
    with fake_state_tracker():
        yield


def noise_of(scale: float, windows: int = 200) -> SmoothedNoise:
    """As after windows that all measured exactly this."""
    noise = SmoothedNoise()
    for _ in range(windows):
        noise = noise.with_window(WindowNorms(2, 1 + scale, 1 + scale / 2, 1.0))
    return noise


def ramp(**changes: Any) -> GH200GradientRamp:
    asked = {"target_effective_batch_size": 48, "batch_rampup_steps": 100, "shape": "measured", "train_batch_size": 2}
    return GH200GradientRamp(**{**asked, **changes})


# The rule


def test_opens_with_two_micro_batches_whatever_was_asked() -> None:
    assert ramp().accumulation_steps(0) == 2
    small = ramp(initial_effective_batch_size=1)
    assert small.accumulation_steps(10_000) == 2
    assert any("two micro-batches, the least that can be measured" in note for note in small.notes)
    assert ramp(initial_effective_batch_size=12).accumulation_steps(0) == 6


def test_doubles_while_it_pays_and_never_passes_the_target() -> None:
    now, sizes = ramp(), []
    for window in range(1000):
        decision = growth(now, window, noise_of(1000))
        if decision:
            now = replace(now, grown=(*now.grown, (window, decision.effective_batch_size)))
            sizes.append(decision.effective_batch_size)
    assert sizes == [8, 16, 32, 48]
    places = [now.place_of(start) for start, _ in now.grown]
    assert all(later - earlier >= 100 for earlier, later in pairwise(places))
    assert [segment.size for segment in now.segments][-1] == now.target == now.largest


@pytest.mark.parametrize(
    ("scale", "windows", "grows"), [(7.9, 200, False), (8.1, 200, True), (1000, LEAST_WINDOWS - 1, False)]
)
def test_grows_only_when_the_noise_scale_reaches_the_larger_batch(scale: float, windows: int, grows: bool) -> None:
    decision = growth(ramp(), 300, noise_of(scale, windows))
    assert bool(decision) == grows
    if decision:
        assert (decision.before, decision.effective_batch_size) == (4, 8)
        assert "8.1" in decision.reason
        assert "8 pays" in decision.reason


@pytest.mark.parametrize("unit", ["micro_batches", "samples", "steps"])
def test_measured_windows_count_like_any_ramp(unit: str) -> None:
    grown = ramp(unit=unit, grown=((5, 8), (9, 16)))
    micro_batch = 0
    for window in range(20):
        assert grown.accumulation_steps(window) == (2 if window < 5 else 4 if window < 9 else 8)
        assert grown.micro_batches_for(window) == micro_batch
        assert grown.locate(micro_batch) == (window, 0)
        micro_batch += grown.accumulation_steps(window)
    assert grown.most_micro_batches_for(9) == grown.micro_batches_for(9)
    assert grown.most_micro_batches_for(11) == grown.micro_batches_for(9) + 2 * 24


def test_a_ramp_in_samples_goes_on_with_other_processes() -> None:
    grown = ramp(unit="samples", grown=((5, 8), (9, 16)))
    other = replace(grown, num_processes=2).continued_at(12, grown.samples_for(12), grown.sizes)
    assert other.fingerprint() == replace(grown, num_processes=2).fingerprint()
    assert other.samples_for(12) == grown.samples_for(12)
    assert [other.effective_batch_size(window) for window in (12, 50)] == [16, 16]
    assert replace(other, grown=(*grown.grown, (20, 32))).effective_batch_size(21) == 32


@pytest.mark.parametrize("asked", [{"target_effective_batch_size": 2}, {"initial_effective_batch_size": 20}])
def test_a_ramp_that_cannot_grow_is_rejected(asked: dict[str, Any]) -> None:
    with pytest.raises(RampError, match="only grows"):
        Trainer().build(**{**ASKED, **asked})


# In a trainer


def started(directory: Path | None = None, step: int = 0, **changes: Any) -> Trainer:
    trainer = Trainer(max_train_steps=99)
    trainer.model = Model(NOISY)
    trainer.build(**{**ASKED, **changes})
    trainer.prepare(rate=0.001)
    if directory is not None:
        trainer.init_resume_checkpoint(None, directory=directory, step=step)
    return trainer


def run(trainer: Trainer, first: int, last: int) -> list[tuple[int, bytes]]:
    """Window sizes and weights, update by update; `first` and `last` count micro-batches."""
    seen = []
    for number, row in enumerate(noisy_rows(last)):
        if number >= first and trainer.micro_batch(number + 1, row) is not None:
            seen.append((trainer.config.gradient_accumulation_steps, trainer.weight().detach().numpy().tobytes()))
    return seen


def test_every_update_is_its_windows_mean() -> None:
    trainer = started()
    worst, sizes = worst_error(trainer, 200, data_of=noisy_rows)
    assert worst < 1e-12
    assert sizes[0] == 2
    assert sorted(set(sizes)) == [2, 4, 8, 12]
    assert trainer.logged[-1]["gh200/effective_batch_size"] == 12


def test_a_resumed_run_is_bit_identical(tmp_path: Path) -> None:
    whole = started()
    updates = run(whole, 0, 300)
    decisions = whole._gh200_ramp.decisions
    assert len(decisions) == 3
    # Right before a decision, right after one, and between two.
    for at in (decisions[0].window, decisions[1].window + 1, (decisions[1].window + decisions[2].window) // 2):
        before = started()
        count = whole._gh200_ramp.ramp.micro_batches_for(at)
        assert run(before, 0, count) == updates[:at]
        directory = tmp_path / str(at)
        before.accelerator.save_state(str(directory))
        record = json.loads((directory / "gh200_ramp.json").read_text())
        assert [entry["window"] for entry in record["decisions"]] == [
            one.window for one in decisions if one.window < at
        ]
        assert all("noise scale" in entry["reason"] for entry in record["decisions"])
        resumed = started(directory, at)
        assert run(resumed, count, 300) == updates[at:]
        assert resumed._gh200_ramp.decisions == decisions


@pytest.mark.parametrize(
    "damage", [lambda record: record.pop("noise"), lambda record: record["decisions"].append({"window": 3})]
)
def test_rejects_a_checkpoint_without_what_was_measured(tmp_path: Path, damage: Any) -> None:
    trainer = started()
    run(trainer, 0, 60)
    trainer.accelerator.save_state(str(tmp_path / "c"))
    path = tmp_path / "c" / "gh200_ramp.json"
    record = json.loads(path.read_text())
    damage(record)
    path.write_text(json.dumps(record))
    with pytest.raises(RampError, match="gh200_ramp.json cannot be read"):
        started(tmp_path / "c", 30)


def test_epochs_say_that_steps_are_the_most(caplog: pytest.LogCaptureFixture) -> None:
    trainer = Trainer(batches_per_epoch=12, num_train_epochs=3)
    trainer.build(**ASKED)
    trainer._recalculate_training_steps()
    assert trainer.config.max_train_steps == 18
    assert "18 is the most" in caplog.text
    by_steps = Trainer(batches_per_epoch=12, max_train_steps=18, num_train_epochs=0)
    by_steps.build(**ASKED)
    by_steps._recalculate_training_steps()
    assert by_steps.config.num_train_epochs == 18


# Optional beside it


def test_beta2_is_kept_in_samples_and_the_rate_by_root() -> None:
    trainer = Trainer()
    asked = {"batch_rampup_table": [(0, 2), (6, 8)], "batch_rampup_beta2": "samples", "batch_rampup_lr_scaling": "sqrt"}
    trainer.build(**asked)
    trainer.prepare(rate=0.5, optimizer_class=torch.optim.AdamW)
    inner = trainer.optimizer.optimizer
    seen: list[tuple[float, float]] = []
    # Registered after the first window has opened, so it sees what the step is made with.
    for step, row in enumerate(rows(22), start=1):
        trainer.micro_batch(step, row)
        if step == 1:
            inner.register_step_pre_hook(
                lambda stepping, *_: seen.append((stepping.param_groups[0]["betas"][1], stepping.param_groups[0]["lr"]))
            )
        group = inner.param_groups[0]
        assert (group["betas"], group["lr"]) == ((0.9, 0.999), 0.5)
    assert seen == [(0.999**1.0, 0.25)] * 3 + [(0.999**4.0, 0.5)] * 2
    assert trainer.logged[-1]["gh200/beta2_power"] == 4.0


def test_beta2_of_an_optimizer_without_one_is_rejected() -> None:
    trainer = started(batch_rampup_beta2="samples")
    with pytest.raises(RampError, match="no beta2"):
        run(trainer, 0, 1)


@pytest.mark.slow(reason="trains a model of its own with four schedules")
def test_study_draws_its_plot(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gh200_lab.bench.ramp_study", "--seeds", "2", "--samples", "128"]
    done = subprocess.run([*command, "--output", str(tmp_path / "study.png")], cwd=REPO, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("loss ") == 4
    runs = json.loads((tmp_path / "study.json").read_text())
    assert all(points[0][0][2] != points[0][-1][2] and points[0][-1] != points[1][-1] for points in runs.values())
    assert (tmp_path / "study.png").stat().st_size > 10_000


def test_two_ranks_agree() -> None:
    first, second = on_two_ranks(__file__)
    assert first == second
    assert float(first["worst"]) < 1e-12
    assert first["sizes"][0] == 2
    assert len(set(first["sizes"])) > 1


def one_rank() -> None:
    trainer = started(target_effective_batch_size=16)
    rank = trainer.accelerator.process_index
    worst, sizes = worst_error(trainer, 120, seeds=(0, 1), rank=rank, data_of=noisy_rows)
    found = {"worst": worst, "sizes": sizes, "reasons": [asdict(one) for one in trainer._gh200_ramp.decisions]}
    print(json.dumps(found))


if __name__ == "__main__":
    logging.disable()
    with fake_state_tracker():
        one_rank()
