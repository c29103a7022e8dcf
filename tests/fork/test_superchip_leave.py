"""A run that is taken away: on a signal it finishes its window, writes a checkpoint and leaves with its own code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny import Lab

from simpletuner.gh200.leave.files import MARKER, place_in
from simpletuner.gh200.leave.signals import EXIT_CODE

pytestmark = [pytest.mark.fork, pytest.mark.system, pytest.mark.timeout(1800)]

IMAGES = {"first": 7, "second": 4}
ASKED = {
    "checkpoint_on_signal": True,
    "enable_batch_size_rampup": True,
    "initial_effective_batch_size": 1,
    "target_effective_batch_size": 3,
    "batch_rampup_steps": 10,
}
TOLD_AT = 6


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    lab = Lab(tmp_path_factory.mktemp("leave"))
    for name, images in IMAGES.items():
        lab.add_dataset(name, images)
    return lab


def test_superchip_taken_away_in_a_window_it_leaves_a_checkpoint_after_it(lab: Lab) -> None:
    signals = [{"name": "SIGUSR1", "at": TOLD_AT}]
    taken = lab.watched("taken", gh200_optimizations=ASKED, orders={"signals": signals}, max_train_steps=8)
    assert taken.code == EXIT_CODE, taken.text[-3000:]
    step, trained = len(taken.updates()), len(taken.micro_losses())
    assert step < 8 and sum(taken.watched_windows()) == trained > TOLD_AT, "the window was finished, and no other begun"
    marker = json.loads((taken.output / MARKER).read_text())
    assert (marker["checkpoint"], marker["signal"], marker["rank"]) == (f"checkpoint-{step}", "SIGUSR1", 0)
    checkpoint: Path = taken.output / marker["checkpoint"]
    assert place_in(checkpoint) == trained
    assert json.loads((checkpoint / "gh200_ramp.json").read_text())["place_in_window"] == 0
