"""Trainers of the step benchmark take a step when it is their turn, and a broken one says what it printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from gh200_lab.tiny.turns import Trainer

TRAIN = """
import time, torch

parameter = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([parameter])
for step in range(3):
    with open("began", "a") as file:
        file.write(".")
    time.sleep(0.05)
    parameter.sum().backward()
    optimizer.step()
raise SystemExit("out of images")
"""


def test_a_trainer_waits_for_its_turn_and_times_only_its_steps(tmp_path: Path) -> None:
    script, began = tmp_path / "tree" / "simpletuner" / "train.py", tmp_path / "began"
    script.parent.mkdir(parents=True)
    script.write_text(TRAIN)
    with Trainer(tmp_path / "tree", tmp_path / "config.json") as trainer:
        assert began.read_text() == "."
        assert [trainer.step() >= 0.05 for _ in range(2)] == [True, True]
        with pytest.raises(RuntimeError, match="(?s)exit code 1:.*out of images"):
            trainer.step()
    assert began.read_text() == "..."
