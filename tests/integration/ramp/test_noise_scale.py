"""The gradient noise scale: unbiased, from all ranks, without changing a bit of the training it watches."""

from __future__ import annotations

import json
import logging
import statistics
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from ramp_fake import Trainer, fake_state_tracker, on_two_ranks, rows

from simpletuner.gh200.config.problems import SettingsError
from simpletuner.gh200.config.sources import read_settings
from simpletuner.gh200.ramp.noise import LEAST_WINDOWS, SmoothedNoise, WindowNorms
from simpletuner.gh200.ramp.schedule import RampError
from simpletuner.gh200.telemetry import step_log
from simpletuner.gh200.trainer import TrainerHooks

NAME = "gh200/gradient_noise_scale"


@pytest.fixture(autouse=True, scope="module")
def state_tracker() -> Iterator[None]:
    with fake_state_tracker():
        yield


# Arithmetic

TRUE_GRADIENT = np.linspace(0.1, 0.5, 40)
DEVIATION = np.linspace(0.2, 2.0, 40)
TRUE_SCALE = float((DEVIATION**2).sum() / (TRUE_GRADIENT**2).sum())


def quadratic_windows(seed: int, windows: int, micro_batches: int, batches: list[int]) -> Iterator[WindowNorms]:
    """Windows at one point of a quadratic whose samples' gradients are the true one and noise of known size."""
    random = np.random.default_rng(seed)
    inverse = 1 / np.asarray(batches)[:, None]
    for _ in range(windows):
        noise = random.standard_normal((micro_batches, len(TRUE_GRADIENT)))
        each = TRUE_GRADIENT + DEVIATION * noise * np.sqrt(inverse)
        yield WindowNorms(
            micro_batches,
            float((each**2).sum(1).mean()),
            float((each.mean(0) ** 2).sum()),
            float(inverse.mean()),
        )


@pytest.mark.parametrize("batches", [[1, 1], [4] * 8, [1, 2, 4, 8]])
def test_bias_is_below_five_percent(batches: list[int]) -> None:
    """1,000 windows, 20 seeds; also where micro-batches are of different sizes."""
    found, covered = [], []
    for seed in range(20):
        seen, smoothed = list(quadratic_windows(seed, 1000, len(batches), batches)), SmoothedNoise()
        found.append(sum(one.trace for one in seen) / sum(one.signal for one in seen))
        for one in seen:
            smoothed = smoothed.with_window(one)
        interval = smoothed.interval()
        assert interval is not None
        covered.append(interval.low <= TRUE_SCALE <= (interval.high or np.inf))
    assert abs(statistics.mean(found) / TRUE_SCALE - 1) < 0.05
    assert sum(covered) >= 15, "90 % intervals miss more often than they may"


def test_without_a_signal_has_no_upper_end() -> None:
    smoothed = SmoothedNoise()
    for seed in range(40):
        noise = np.random.default_rng(seed).standard_normal((2, 30))
        smoothed = smoothed.with_window(
            WindowNorms(2, float((noise**2).sum(1).mean()), float((noise.mean(0) ** 2).sum()), 1.0)
        )
    interval = smoothed.interval()
    assert interval is not None
    assert interval.high is None
    assert interval.low > 0.5


def test_a_checkpoint_is_bit_identical() -> None:
    smoothed = SmoothedNoise()
    for norms in quadratic_windows(3, 20, 4, [2] * 4):
        smoothed = smoothed.with_window(norms)
    assert SmoothedNoise.from_record(json.loads(json.dumps(asdict(smoothed)))) == smoothed
    of_v1 = {**asdict(smoothed), "timesteps": [0.0] * 114}
    assert SmoothedNoise.from_record(of_v1) == smoothed


# In a trainer


def watched(trainer: Trainer, **prepare: Any) -> Any:
    trainer.build(enable_batch_size_rampup=False, measure_gradient_noise_scale=True)
    trainer.prepare(**prepare)
    return trainer._gh200_noise


def expected_norms(gradients: list[torch.Tensor], samples: list[int]) -> WindowNorms:
    each = torch.stack(gradients)
    inverse = sum(1 / count for count in samples) / len(samples)
    return WindowNorms(len(gradients), float(each.square().sum(1).mean()), float(each.mean(0).square().sum()), inverse)


@pytest.mark.parametrize("scaled", [False, True])
def test_the_meter_sees_every_micro_batch(scaled: bool) -> None:
    trainer = Trainer(gradient_accumulation_steps=4)
    trainer.accelerator.gradient_accumulation_steps = 4
    meter = watched(trainer)
    if scaled:
        # As with fp16: every loss times a number that the gradients have to be divided by.
        trainer.accelerator.scaler = SimpleNamespace(scale=lambda loss: loss * 512.0, get_scale=lambda: 512.0)
    expected, window, sizes = SmoothedNoise(), [], []
    for number, row in enumerate(rows(40)):
        weight = trainer.weight().detach().clone().requires_grad_()
        window.append(torch.autograd.grad(torch.tanh(weight @ row).square(), weight)[0])
        sizes.append(1 + number % 3)
        stepped = trainer.micro_batch(number + 1, row, batch={"latents": torch.zeros(sizes[-1], 1)})
        if stepped is not None:
            expected = expected.with_window(expected_norms(window, sizes))
            window, sizes = [], []
    for key, value in asdict(expected).items():
        assert asdict(meter.noise)[key] == pytest.approx(value, rel=1e-9), key
    assert meter.noise.windows == 10


def test_measured_training_is_bit_identical() -> None:
    weights = []
    for measured in (False, True):
        trainer = Trainer()
        trainer.build(target_effective_batch_size=4, batch_rampup_steps=20, measure_gradient_noise_scale=measured)
        trainer.prepare()
        for step, row in enumerate(rows(60), start=1):
            trainer.micro_batch(step, row)
        weights.append(trainer.weight().detach().clone())
    assert torch.equal(*weights)


def test_off_attaches_nothing() -> None:
    trainer = Trainer()
    backward = trainer.accelerator.backward
    trainer.build(target_effective_batch_size=4)
    trainer.prepare()
    trainer.micro_batch(1, next(iter(rows(1))))
    assert trainer._gh200_noise is None
    assert TrainerHooks._gh200_noise is None
    assert trainer.accelerator.backward == backward
    assert not trainer.weight()._backward_hooks


def test_one_micro_batch_on_one_rank_warns_and_measures_nothing(caplog: pytest.LogCaptureFixture) -> None:
    trainer = Trainer()
    meter = watched(trainer)
    for step, row in enumerate(rows(2 * LEAST_WINDOWS), start=1):
        trainer.micro_batch(step, row)
    assert meter.noise == SmoothedNoise()
    assert caplog.text.count("one micro-batch on one rank has nothing to compare with and measures nothing") == 1
    assert not any(NAME in values for values in trainer.logged)


def test_a_probing_backward_does_not_count() -> None:
    """Upstream's autotuner runs one more backward in a micro-batch and throws its gradients away."""
    found = []
    for probes in (False, True):
        trainer = Trainer()
        trainer.accelerator.gradient_accumulation_steps = 2
        meter = watched(trainer)
        for step, row in enumerate(rows(12), start=1):
            first = step % 2 == 1 and probes
            trainer.micro_batch(step, row, probe=row * 3 if first else None)
        found.append(meter.noise)
    assert found[0] == found[1]


def test_a_window_that_is_not_finite_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    trainer = Trainer()
    trainer.accelerator.gradient_accumulation_steps = 2
    meter = watched(trainer)
    data = list(rows(8))
    data[3] = data[3] * float("nan")
    trainer.optimizer.step = lambda: None
    for step, row in enumerate(data, start=1):
        trainer.micro_batch(step, row)
    assert meter.noise.windows == 3
    assert "not finite is left out" in caplog.text


def test_noise_scale_reaches_trackers_and_run_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(step_log.VARIABLE, str(tmp_path / "run.jsonl"))
    trainer = Trainer()
    step_log.follow(trainer)
    watched(trainer, rate=0.0)
    trainer.weight().data.fill_(0.1)
    trainer.accelerator.gradient_accumulation_steps = trainer.config.gradient_accumulation_steps = 3
    for step, row in enumerate(rows(3 * LEAST_WINDOWS * 4), start=1):
        trainer.micro_batch(step, row, batch={"latents": torch.zeros(1, 1)})
    logged = [values for values in trainer.logged if NAME in values]
    assert len(logged) == 3 * LEAST_WINDOWS + 1
    last = json.loads((tmp_path / "run.jsonl").read_text().splitlines()[-1])
    for name in (NAME, f"{NAME}_low", f"{NAME}_high"):
        assert last[name.removeprefix("gh200/")] == logged[-1][name]
    assert logged[-1][f"{NAME}_low"] < logged[-1][NAME] < logged[-1][f"{NAME}_high"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("fsdp_enable", True),
        ("context_parallel_size", 2),
        ("optimizer_release_gradients", True),
        ("ramtorch", True),
        ("distillation_method", "dmd"),
    ],
)
def test_rejected_where_gradients_are_not_whole(key: str, value: object) -> None:
    with pytest.raises(RampError, match="cannot be measured") as caught:
        watched(Trainer(**{key: value}))
    assert key in caught.value.why


def test_settings_follow_the_shape() -> None:
    block = {"target_effective_batch_size": 8, "batch_rampup_shape": "measured"}
    settings = read_settings({"gh200_optimizations": block}, {})
    assert settings.optimizations.measure_gradient_noise_scale
    assert not read_settings(
        {"gh200_optimizations": {"target_effective_batch_size": 8}}, {}
    ).optimizations.measure_gradient_noise_scale
    for wrong in ({"measure_gradient_noise_scale": False}, {"batch_rampup_steps": 0}):
        with pytest.raises(SettingsError, match=next(iter(wrong))):
            read_settings({"gh200_optimizations": block | wrong}, {})


def test_two_ranks_measure_all_their_micro_batches() -> None:
    for found in on_two_ranks(__file__):
        assert float(found["worst"]) < 1e-9
        assert found["windows"] == 15


def one_rank() -> None:
    trainer = Trainer()
    trainer.accelerator.gradient_accumulation_steps = 2
    meter = watched(trainer)
    ranks, rank = [list(rows(30, seed)) for seed in range(2)], trainer.accelerator.process_index
    expected, window, sizes = SmoothedNoise(), [], []
    for number in range(30):
        weight = trainer.weight().detach().clone().requires_grad_()
        for other, data in enumerate(ranks):
            window.append(torch.autograd.grad(torch.tanh(weight @ data[number]).square(), weight)[0])
            sizes.append(1 + other)
        if (
            trainer.micro_batch(number + 1, ranks[rank][number], batch={"latents": torch.zeros(1 + rank, 1)})
            is not None
        ):
            expected = expected.with_window(expected_norms(window, sizes))
            window, sizes = [], []
    found = asdict(meter.noise)
    worst = max(abs(found[key] / value - 1) for key, value in asdict(expected).items())
    print(json.dumps({"worst": worst, "windows": meter.noise.windows}))


if __name__ == "__main__":
    logging.disable()
    with fake_state_tracker():
        one_rank()


def test_a_value_is_only_reported_where_the_gradient_is_separated_from_noise() -> None:
    """A true scale of 256, windows of two single samples: the quotient alone would be far below it half of the time."""
    gradient = np.full(64, 1 / 8)
    shown = []
    for seed in range(100):
        random, smoothed = np.random.default_rng(seed), SmoothedNoise()
        for _ in range(200):
            each = gradient + 2 * random.standard_normal((2, 64))
            norms = float((each**2).sum(1).mean()), float((each.mean(0) ** 2).sum())
            smoothed = smoothed.with_window(WindowNorms(2, *norms, 1.0))
        interval = smoothed.interval()
        assert interval is not None and (interval.value is None or interval.high is not None)
        if interval.value is not None:
            shown.append(interval.value)
    assert len(shown) <= 15, "5 % of the intervals may exclude the truth on that side"
