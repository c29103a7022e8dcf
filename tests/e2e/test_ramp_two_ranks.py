"""One ramp of the real fork in every test run: two ranks, batches of two, EMA, a decaying rate, clipping, noise scale."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pytest
from tiny import Lab

from gh200_lab.tiny.launch import Launcher
from simpletuner.gh200.ramp.schedule import GH200GradientRamp

pytestmark = pytest.mark.timeout(1500)
STEPS, RATE, CLIP = 22, 2e-3, 1e-3
RAMP = {
    "initial_effective_batch_size": 4,
    "target_effective_batch_size": 16,
    "batch_rampup_steps": 30,
    "measure_gradient_noise_scale": True,
}
SCHEDULE = GH200GradientRamp(4, 16, 30, train_batch_size=2, num_processes=2)


def test_noise_scale_and_ramp_in_the_fork_with_all_that_people_use(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.add_dataset("squares", 16)
    run = lab.watched(
        "everything",
        launcher=Launcher(gpu=False, ranks=2),
        gh200_optimizations=RAMP,
        train_batch_size=2,
        use_ema=True,
        lr_scheduler="polynomial",
        lr_power=1.0,
        lr_end=0.0,
        lr_warmup_steps=0,
        learning_rate=RATE,
        max_grad_norm=CLIP,
        grad_clip_method="norm",
        max_train_steps=STEPS,
        checkpoint_step_interval=STEPS,
        orders={},
    )
    assert run.code == 0, run.text[-3000:]
    windows = [SCHEDULE.accumulation_steps(window) for window in range(STEPS)]
    assert run.windows() == windows
    assert (windows[0], windows[-1]) == (1, 4)
    assert len(run.micro_losses()) == 2 * SCHEDULE.micro_batches_for(STEPS)
    # Both ranks have made every update, and the same one.
    assert sorted(Counter(run.updates()).values()) == [2] * STEPS
    rates = [step["learning_rate"] for step in run.steps]
    assert all(
        math.isclose(rate, RATE * (1 - (n + 1) / STEPS), rel_tol=1e-3, abs_tol=1e-9) for n, rate in enumerate(rates)
    )
    assert run.steps[-1]["gradient_noise_scale_low"] > 0
    checkpoint = run.output / f"checkpoint-{STEPS}"
    record = json.loads((checkpoint / "gh200_ramp.json").read_text())
    assert (record["global_step"], record["place_in_window"]) == (STEPS, 0)
    assert record["noise"]["windows"] == STEPS
    assert any("ema" in path.name for path in checkpoint.rglob("*"))
