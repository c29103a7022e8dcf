"""What runs the trainings of an acceptance run, on the simulated GPU and with a trainer of a few lines in upstream's place."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gh200_lab.place import ROOT
from tests.cuda_sim.processes import CannotBuild, build, run

pytestmark = pytest.mark.timeout(600)
HBM_MB = 64
TRAIN = """
import json, os
from pathlib import Path
import torch
from accelerate import Accelerator
from safetensors.torch import save_file

config = json.loads(Path(os.environ["CONFIG_PATH"]).read_text())
torch.manual_seed(0)
accelerator = Accelerator(gradient_accumulation_steps=config["gradient_accumulation_steps"])
model = torch.nn.Linear(2048, 1024).to(accelerator.device)
optimizer = accelerator.prepare(torch.optim.AdamW(model.parameters()))
steps = 0
while steps < config["max_train_steps"]:
    with accelerator.accumulate(model):
        accelerator.backward(model(torch.ones(2, 2048, device=accelerator.device)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    steps += accelerator.sync_gradients
save_file({"weight": model.weight.detach().cpu()}, Path(config["output_dir"]) / "trained.safetensors")
"""
ORDERS = """
import json, os, sys
from dataclasses import asdict
from pathlib import Path
from gh200_lab.checkout import see_this_checkout
see_this_checkout()
from gh200_lab.validation import acceptance
from simpletuner.gh200.diagnostic.acceptance.trainings import Order
tree = Path(sys.argv[1])
acceptance.make_model = lambda *_: None
acceptance.find_place = lambda: type("Place", (), {"fork": tree})
os.environ["SIMPLETUNER_GH200_ENABLE_UVM_HINTS"] = os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "not a value"
trainer = acceptance.Trainings()
stock = trainer.train(Order("stock"), 300)
filled = trainer.train(Order("stock, HBM filled", leave_bytes=stock.torch_bytes // 2), 300)
try:
    late = trainer.train(Order("late"), 0.5)
except TimeoutError as error:
    late = str(error)
trainer.close()
print("RESULTS " + json.dumps([asdict(stock), asdict(filled), late]))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    try:
        build()
    except CannotBuild as reason:
        pytest.skip(str(reason))
    directory = tmp_path_factory.mktemp("acceptance")
    for name in ("tree/simpletuner", "tmp"):
        (directory / name).mkdir(parents=True)
    (directory / "tree/simpletuner/train.py").write_text(TRAIN)
    ran = run(
        ["--hbm-mb", str(HBM_MB)],
        [sys.executable, "-c", ORDERS, str(directory / "tree")],
        directory / "left.jsonl",
        environment={"TMPDIR": str(directory / "tmp"), "PYTHONPATH": str(ROOT)},
        seconds=500,
    )
    assert ran.code == 0, ran.errors[-3000:]
    line = next(line for line in ran.output.splitlines() if line.startswith("RESULTS "))
    assert ran.violations() == []
    return *json.loads(line.removeprefix("RESULTS ")), directory / "tmp"


def test_training_reports_losses_times_and_memory(results: tuple[Any, ...]) -> None:
    stock = results[0]
    assert stock["code"] == 0 and len(stock["losses"]) == 5 and len(set(stock["updates"])) == 4, stock
    assert len(stock["step_seconds"]) == 4 and all(seconds > 0 for seconds in stock["step_seconds"])
    # The weight, its gradient and two moments, 8 MB each.
    assert 4 * 8 << 20 < stock["torch_bytes"] < HBM_MB << 20 and stock["weights"]


def test_training_with_hbm_filled_is_torchs_out_of_memory(results: tuple[Any, ...]) -> None:
    stock, filled = results[:2]
    assert filled["out_of_memory"] and filled["code"] != 0 and "out of memory" in filled["complaint"], filled
    assert filled["left_bytes"] == stock["torch_bytes"] // 2


def test_training_that_is_late_is_ended_and_nothing_is_left(results: tuple[Any, ...]) -> None:
    late, temporary = results[2:]
    assert "did not end within" in late and list(Path(temporary).iterdir()) == []
