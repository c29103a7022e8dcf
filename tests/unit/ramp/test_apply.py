"""The ramp inside a trainer: counts, gates, logs, checkpoints, rejections. Real Accelerator, invented trainer."""

from __future__ import annotations

import io
import json
import logging
import timeit
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ramp_fake import EpochSteps, Trainer, fake_state_tracker, rows
from tqdm import tqdm

from gh200_lab.place import ROOT
from simpletuner.gh200.ramp import apply as ramp_apply
from simpletuner.gh200.ramp.overrides import RampTrainerOverrides
from simpletuner.gh200.ramp.resume import RECORD
from simpletuner.gh200.ramp.schedule import GH200GradientRamp, RampError
from simpletuner.gh200.state import StateHooks
from simpletuner.gh200.trainer import TrainerHooks

REPO = ROOT
UP = {"initial_effective_batch_size": 1, "target_effective_batch_size": 8, "batch_rampup_steps": 30}


@pytest.fixture(autouse=True, scope="module")
def state_tracker() -> Iterator[None]:
    with fake_state_tracker():
        yield


def started(batches: int = 10, **changes: Any) -> tuple[Trainer, GH200GradientRamp]:
    trainer = Trainer(batches_per_epoch=batches, max_train_steps=20)
    ramp = trainer.build(**{**UP, **changes})
    trainer.prepare()
    trainer.init_data_backend()
    return trainer, ramp


def train(trainer: Trainer, count: int, first_step: int = 0) -> list[int]:
    """Micro-batches after which the optimizer stepped."""
    data = list(rows(first_step + count))
    return [
        step
        for step in range(first_step + 1, first_step + count + 1)
        if trainer.micro_batch(step, data[step - 1]) is not None
    ]


# Windows


def test_config_and_accelerator_change_together_and_only_between_windows() -> None:
    trainer, ramp = started()
    for number, row in enumerate(rows(60)):
        window, place = ramp.locate(number)
        trainer.micro_batch(number + 1, row)
        assert (
            trainer.config.gradient_accumulation_steps
            == trainer.accelerator.gradient_accumulation_steps
            == ramp.accumulation_steps(window)
        )
        assert trainer.config.total_batch_size == ramp.effective_batch_size(window)
        assert trainer.accelerator.step == place + 1


def test_an_epoch_end_inside_a_window_carries_its_gradients_over() -> None:
    """Upstream counts the call that finds the epoch's end as a micro-step; the window does not notice."""
    straight, _ = started()
    train(straight, 40)
    broken, _ = started(batches=17)
    data = list(rows(40))
    for number, row in enumerate(data):
        if number == 17:
            assert not broken.accelerator.sync_gradients, "the epoch must end inside a window for this to mean anything"
            broken._epoch_rollover(2)
        broken.micro_batch(number + 1 + (number >= 17), row)
    assert broken.weight().equal(straight.weight())


def test_a_step_counted_inside_a_window_is_an_error() -> None:
    trainer, _ = started(initial_effective_batch_size=4)
    trainer.micro_batch(1, next(iter(rows(1))))
    trainer.state["global_step"] = 1
    with pytest.raises(RampError, match="inside an accumulation window"):
        trainer._apply_dynamic_gradient_accumulation()


# Gates and logs


def test_validation_is_due_only_when_a_window_closes() -> None:
    trainer, ramp = started()
    closed, uploads, validations = [], [], []
    for step, row in enumerate(rows(60), start=1):
        stepped = trainer.micro_batch(step, row) is not None
        naive = step % trainer.config.gradient_accumulation_steps == 0
        closed += [step] * stepped
        uploads += [step] * trainer._gh200_window_closed(naive)
        validations += [step] * trainer.validation.should_perform_intermediary_validation(
            step, "prompts", "intermediary", epoch_end=False
        )
    assert uploads == validations == closed
    assert len(closed) == ramp.steps_for(60)


def test_trackers_and_progress_bar_show_the_window() -> None:
    trainer, ramp = started()
    train(trainer, 40)
    for step, values in enumerate(trainer.logged):
        assert values["gh200/gradient_accumulation_steps"] == ramp.accumulation_steps(step)
        assert values["gh200/effective_batch_size"] == ramp.effective_batch_size(step)
    trainer.accelerator.log({"image": 1})
    assert trainer.logged[-1] == {"image": 1}
    with tqdm(total=60, desc="Epoch 1/3, Steps", file=io.StringIO()) as bar:
        trainer.micro_batch(41, next(iter(rows(1))))
        bar.set_postfix(lr=0.1, step_loss=0.5)
        assert str(bar).endswith(
            f", lr=0.1, step_loss=0.5, accum={trainer.config.gradient_accumulation_steps}, "
            f"eff_batch={trainer.config.total_batch_size}]"
        )


def test_the_contracts_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "gh200.ramp")
    trainer, ramp = started()
    trainer._train_initial_msg()
    train(trainer, 60)
    lines = [
        record for record in caplog.records if record.message.startswith("GH200 gradient accumulation ramp enabled")
    ]
    assert [line.levelname for line in lines] == ["INFO"]
    logged = [record.message for record in caplog.records if record.levelname == "DEBUG"]
    sizes = list(dict.fromkeys(segment.size for segment in ramp.segments))
    assert logged == [f"GH200 ramp adjusted gradient_accumulation_steps -> {size}" for size in sizes[1:]]


# Counts


def test_buckets_are_split_by_the_largest_window() -> None:
    trainer, _ = started()
    trainer._epoch_rollover(2)
    assert trainer.split_by == [8, 8]
    down = Trainer()
    down.build(initial_effective_batch_size=8, target_effective_batch_size=2, batch_rampup_steps=10)
    down.init_data_backend()
    assert down.split_by == [8]


@pytest.mark.parametrize(("batches", "epochs"), [(10, 1), (10, 3), (13, 7), (1, 1)])
def test_epochs_decide_the_steps(batches: int, epochs: int) -> None:
    trainer = Trainer(batches_per_epoch=batches, num_train_epochs=epochs)
    ramp = trainer.build(**UP)
    for _ in range(2):
        trainer._recalculate_training_steps()
        assert trainer.config.max_train_steps == ramp.steps_for(batches * epochs)
        assert trainer.config.num_train_epochs == epochs


def test_steps_decide_the_epochs() -> None:
    trainer = Trainer(batches_per_epoch=10, num_train_epochs=0, max_train_steps=12)
    ramp = trainer.build(**UP)
    trainer._recalculate_training_steps()
    epochs = trainer.config.num_train_epochs
    assert 10 * (epochs - 1) < ramp.micro_batches_for(12) <= 10 * epochs
    assert trainer.config.max_train_steps == 12


def test_steps_per_epoch_add_up_and_are_shown_where_upstream_looks() -> None:
    trainer, ramp = started(batches=25)
    trainer.validation = None
    data = iter(rows(25 * 4))
    micro_step = 0
    for epoch in range(1, 5):
        trainer._epoch_rollover(epoch)
        before = trainer.state["global_step"]
        for row in (next(data) for _ in range(25)):
            micro_step += 1
            trainer.micro_batch(micro_step, row)
        assert trainer.config.num_update_steps_per_epoch == trainer.state["global_step"] - before
    assert trainer.state["global_step"] == ramp.steps_for(100)
    assert EpochSteps.epoch_step <= trainer.config.num_update_steps_per_epoch


def test_datasets_that_start_later_count_from_then_on() -> None:
    trainer, _ = started()
    trainer.config.epoch_batches_schedule = {1: 10, 3: 6}
    counts = trainer._gh200_ramp.counts
    assert [counts.micro_batches_through(epochs) for epochs in (0, 1, 2, 3, 4, 2.5)] == [0, 10, 20, 36, 52, 28]


def test_a_ramp_longer_than_the_run_is_named(caplog: pytest.LogCaptureFixture) -> None:
    trainer, ramp = started(batch_rampup_steps=4000)
    trainer._train_initial_msg()
    warning = next(record.message for record in caplog.records if record.levelname == "WARNING")
    assert f"reaches an effective batch of {ramp.effective_batch_size(19)}, not 8" in warning


# Learning rate


@pytest.mark.parametrize(("policy", "accumulation"), [("target", 8), ("initial", 2), ("follow", 8)])
def test_what_upstream_scales_the_learning_rate_by(policy: str, accumulation: int) -> None:
    trainer = Trainer(lr_scale=True)
    trainer.build(**{**UP, "initial_effective_batch_size": 2}, batch_rampup_lr_scaling=policy)
    assert trainer.config.gradient_accumulation_steps == accumulation


@pytest.mark.parametrize("root", [False, True])
def test_a_following_rate_scales_the_step_and_leaves_no_trace(root: bool) -> None:
    trainer = Trainer(lr_scale=True, lr_scale_sqrt=root)
    ramp = trainer.build(**UP, batch_rampup_lr_scaling="follow")
    trainer.prepare(rate=0.5)
    for step, row in enumerate(rows(30), start=1):
        before, window = trainer.weight().detach().clone(), trainer.state["global_step"]
        gradient = trainer.micro_batch(step, row)
        if gradient is not None:
            factor = ramp.accumulation_steps(window) / 8
            factor = factor**0.5 if root else factor
            assert (before - trainer.weight()).allclose(0.5 * factor * gradient, rtol=1e-12)
            assert trainer.logged[-1]["gh200/learning_rate_factor"] == factor
        assert trainer.optimizer.param_groups[0]["lr"] == 0.5


# Checkpoints


def checkpointed(directory: Path, micro_batches: int, **changes: Any) -> tuple[Trainer, GH200GradientRamp]:
    trainer, ramp = started(**changes)
    train(trainer, micro_batches)
    trainer.accelerator.save_state(str(directory))
    return trainer, ramp


def resumed(directory: Path, step: int, **changes: Any) -> Trainer:
    trainer, _ = started(**changes)
    assert trainer.init_resume_checkpoint("scheduler", directory=directory, step=step) == "scheduler"
    return trainer


def test_a_checkpoint_is_loaded_inside_the_context_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpointed(tmp_path, 20)
    events: list[str] = []

    @contextmanager
    def resuming() -> Iterator[None]:
        events.append("begins")
        yield
        events.append("ends")

    monkeypatch.setattr("simpletuner.gh200.ramp.resume.current", lambda: SimpleNamespace(resuming=resuming))
    trainer, _ = started()
    trainer.accelerator.register_load_state_pre_hook(lambda *_: events.append("loads"))
    trainer.init_resume_checkpoint(None, directory=tmp_path, step=6)
    assert events == ["begins", "loads", "ends"]


def test_a_resumed_run_is_bit_identical(tmp_path: Path) -> None:
    whole, ramp = started()
    train(whole, 60)
    checkpointed(tmp_path, ramp.micro_batches_for(14))
    later = resumed(tmp_path, step=14)
    start = later._gh200_ramp.first_micro_step(14)
    assert start == ramp.micro_batches_for(14) != 14
    train(later, 60 - start, start)
    assert later.weight().equal(whole.weight())
    assert later.logged == whole.logged[14:]


def test_a_checkpoint_inside_a_window_starts_it_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gh200.ramp")
    trainer, ramp = started()
    inside = ramp.micro_batches_for(14) + 2
    train(trainer, inside)
    trainer._gh200_step += 1  # upstream counts the call that finds the epoch at its end
    trainer.accelerator.save_state(str(tmp_path))
    later = resumed(tmp_path, step=14)
    assert "inside window 14" in caplog.text and "without the 2 micro-batches" in caplog.text
    assert later._gh200_ramp.first_micro_step(14) == inside + 1
    assert train(later, ramp.accumulation_steps(14), inside + 1) == [inside + 1 + ramp.accumulation_steps(14)]


CHANGES = {
    "batch_rampup_steps": 31,
    "target_effective_batch_size": 9,
    "batch_rampup_shape": "linear",
    "enable_batch_size_rampup": False,
}


@pytest.mark.parametrize("key", CHANGES)
def test_a_changed_ramp_is_rejected_and_the_checkpoint_load_itself_never_fails(tmp_path: Path, key: str) -> None:
    checkpointed(tmp_path, 6)
    trainer, _ = started(**{key: CHANGES[key]})
    trainer.accelerator.load_state(str(tmp_path))
    with pytest.raises(RampError, match="changed since the checkpoint") as caught:
        trainer.init_resume_checkpoint(None, directory=tmp_path, step=6)
    assert "accept_changed_ramp" in caught.value.fix
    assert "in the checkpoint" in caught.value.why


@pytest.mark.parametrize("key", CHANGES)
def test_a_changed_ramp_is_accepted_when_asked(tmp_path: Path, key: str, caplog: pytest.LogCaptureFixture) -> None:
    checkpointed(tmp_path, 6)
    trainer = resumed(tmp_path, step=6, accept_changed_ramp=True, **{key: CHANGES[key]})
    assert "accept_changed_ramp is set" in caplog.text
    train(trainer, 3, 6)
    if trainer._gh200_ramp is not None:
        assert trainer.config.gradient_accumulation_steps == trainer._gh200_ramp.ramp.accumulation_steps(
            trainer._gh200_ramp.window
        )


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"schedule": {}}'])
def test_a_missing_or_damaged_record_is_a_change(tmp_path: Path, damage: str) -> None:
    checkpointed(tmp_path, 6)
    (tmp_path / RECORD).write_text(damage) if damage else (tmp_path / RECORD).unlink()
    trainer, _ = started()
    with pytest.raises(RampError, match="changed since the checkpoint"):
        trainer.init_resume_checkpoint(None, directory=tmp_path, step=6)


def test_a_run_without_any_settings_does_not_continue_a_ramp(tmp_path: Path) -> None:
    checkpointed(tmp_path, 6)
    trainer = Trainer()
    trainer.prepare()
    assert ramp_apply.build_ramp(trainer, None) is None
    with pytest.raises(RampError, match="changed since the checkpoint"):
        trainer.init_resume_checkpoint(None, directory=tmp_path, step=6)


def test_exit_code_two_where_upstream_would_hide_the_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpointed(tmp_path, 6)
    trainer, _ = started(batch_rampup_steps=31)
    trainer.gh200_exit_on_error = True
    with pytest.raises(SystemExit) as caught:
        trainer.init_resume_checkpoint(None, directory=tmp_path, step=6)
    assert caught.value.code == 2
    assert "batch_rampup_steps: 30 in the checkpoint, 31 now" in capsys.readouterr().err


def test_prefetch_is_warned_of_as_inexact(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpointed(tmp_path, 6)
    trainer, _ = started()
    trainer.config.dataloader_prefetch = True
    trainer.init_resume_checkpoint(None, directory=tmp_path, step=6)
    assert "dataloader_prefetch" in caplog.text


def test_the_record_is_plain_json(tmp_path: Path) -> None:
    _, ramp = checkpointed(tmp_path, 6)
    record = json.loads((tmp_path / RECORD).read_text())
    assert record["schedule"] == ramp.fingerprint()
    assert (record["global_step"], record["micro_step"], record["place_in_window"]) == (6, 6, 0)
    assert [path.name for path in tmp_path.glob("*.tmp")] == []


# Rejections and the ramp switched off


@pytest.mark.parametrize("setting", ["optimizer_release_gradients", "ramtorch"])
def test_what_cannot_be_exact_is_rejected_with_the_reason(setting: str) -> None:
    trainer = Trainer(**{setting: True})
    with pytest.raises(RampError) as caught:
        trainer.build(**UP)
    assert setting in caught.value.why
    assert trainer.build(enable_batch_size_rampup=False) is None


def test_deepspeed_is_rejected() -> None:
    from accelerate.utils import DistributedType

    trainer = Trainer()
    trainer.accelerator.state.distributed_type = DistributedType.DEEPSPEED
    with pytest.raises(RampError, match="DeepSpeed"):
        trainer.build(**UP)


def test_an_upstream_without_a_bound_method_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Trainer, "_epoch_rollover")
    with pytest.raises(RampError, match="no _epoch_rollover"):
        Trainer().build(**UP)


def test_overrides_are_named_and_upstreams_own_class_is_left_alone() -> None:
    trainer, _ = started()
    train(trainer, 1)
    assert trainer._epoch_rollover.__qualname__ == "RampTrainerOverrides._epoch_rollover"
    assert trainer.validation is not None
    assert trainer.validation._epoch_relative_step.__qualname__ == "RampValidationOverrides._epoch_relative_step"
    assert "_epoch_rollover" not in vars(Trainer(max_train_steps=1))


def test_nothing_is_replaced_where_one_method_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Trainer, "_train_initial_msg")
    trainer = Trainer()
    with pytest.raises(RampError, match="no _train_initial_msg"):
        trainer.build(**UP)
    assert not set(vars(trainer)) & set(RampTrainerOverrides.answers())


def test_switched_off_nothing_is_touched() -> None:
    trainer = Trainer(gradient_accumulation_steps=3)
    own = set(vars(trainer))
    assert trainer.build(enable_batch_size_rampup=False) is None
    assert set(vars(trainer)) - own == {"init_resume_checkpoint", "checkpoint_state_latest"}
    with tqdm(total=60, desc="Epoch 1/3, Steps", file=io.StringIO()) as bar:
        trainer._apply_dynamic_gradient_accumulation()
        assert bar.bar_format is None
    assert trainer._gh200_training_begins(7) == 7
    assert [trainer._gh200_window_closed(verdict) for verdict in (True, False)] == [True, False]
    assert trainer.config.gradient_accumulation_steps == 3


@pytest.mark.performance
def test_switched_off_it_costs_less_than_five_microseconds() -> None:
    trainer = Trainer()
    trainer.build(enable_batch_size_rampup=False)
    best = min(timeit.repeat(lambda: trainer._apply_dynamic_gradient_accumulation(), number=10_000, repeat=5)) / 10_000
    assert best < 5e-6


def test_ramp_settings_of_a_trainer_without_an_accelerator_start_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Upstream makes such trainers, to read a config."""
    monkeypatch.setattr(StateHooks, "_gh200_run", object())
    trainer = TrainerHooks()
    trainer._start_gh200_features()
    assert trainer.gh200_ramp_scheduler is None
