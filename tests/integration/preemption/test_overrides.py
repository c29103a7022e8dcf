"""When a trainer leaves, and what it leaves: an invented trainer around a real Accelerator."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState
from preemption_trainer import Trainer, preemption_of

from gh200_lab.place import ROOT
from simpletuner.gh200.preemption import hooks
from simpletuner.gh200.preemption.checkpoints import CheckpointError
from simpletuner.gh200.preemption.hooks import Preemption, RandomStates
from simpletuner.gh200.preemption.marker import MARKER, MICRO_STEP, saved_micro_step
from simpletuner.gh200.preemption.signals import EXIT_CODE
from simpletuner.gh200.trainer import LoopCount

pytestmark = pytest.mark.timeout(600)
HERE = ROOT / "tests/support"


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Trainer]:
    yield Trainer(tmp_path)
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture
def preemption(trainer: Trainer) -> Preemption:
    return preemption_of(trainer)


def test_a_preempted_run_has_not_counted_the_next_micro_batch(
    trainer: Trainer, preemption: Preemption, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "_preemption", lambda: preemption)
    LoopCount(trainer)  # type: ignore[arg-type]
    trainer._exit_on_signal()
    assert trainer._gh200_step == 10
    preemption.signals.asked_with, trainer.state["global_step"] = signal.SIGTERM, 5
    with pytest.raises(SystemExit):
        trainer._exit_on_signal()
    assert (trainer.asked, trainer._gh200_step, saved_micro_step(tmp_path / "checkpoint-5")) == (2, 10, 10)


def test_a_run_does_not_stop_before_a_window_has_closed(trainer: Trainer, preemption: Preemption) -> None:
    preemption.signals.asked_with = signal.SIGTERM
    preemption.stop_if_requested()
    preemption.stop_if_requested()
    assert trainer.saves == 0


def test_the_closed_window_is_saved_as_it_was(trainer: Trainer, preemption: Preemption, tmp_path: Path) -> None:
    trainer.state["global_step"] = 5
    preemption.stop_if_requested()
    trainer.state["global_step"] = 6
    preemption.signals.asked_with = signal.SIGUSR1
    before = RandomStates.capture()
    with pytest.raises(SystemExit) as left:
        preemption.stop_if_requested()
    assert left.value.code == EXIT_CODE and preemption.signals.saved
    marker = json.loads((tmp_path / MARKER).read_text())
    assert (marker["checkpoint"], marker["step"], marker["signal"], marker["rank"]) == ("checkpoint-6", 6, "SIGUSR1", 0)
    checkpoint = tmp_path / "checkpoint-6"
    kept = torch.load(checkpoint / "random_states_0.pkl", weights_only=False)
    assert kept["random_state"] == before.of_python and torch.equal(kept["torch_manual_seed"], before.of_torch)
    assert (kept["numpy_random_seed"][1] == before.of_numpy[1]).all()
    assert saved_micro_step(checkpoint) == 9 and (checkpoint / MICRO_STEP).is_file()


def test_a_checkpoint_of_this_window_is_not_written_twice(trainer: Trainer, preemption: Preemption) -> None:
    trainer.state["global_step"] = 7
    trainer.checkpoint_state_save(trainer.config.output_dir)
    preemption.signals.asked_with = signal.SIGTERM
    with pytest.raises(SystemExit):
        preemption.stop_if_requested()
    assert trainer.saves == 1


def test_a_full_disk_is_an_error_and_no_marker(trainer: Trainer, preemption: Preemption, tmp_path: Path) -> None:
    trainer.state["global_step"], trainer.full = 8, True
    preemption.signals.asked_with = signal.SIGTERM
    with pytest.raises(CheckpointError, match="No space left on device"):
        preemption.stop_if_requested()
    assert not (tmp_path / MARKER).exists()


def test_the_next_start_removes_the_marker_and_resumes_the_micro_step(
    trainer: Trainer, preemption: Preemption, tmp_path: Path
) -> None:
    checkpoint = Path(trainer.checkpoint_state_save(str(tmp_path)))
    (tmp_path / MARKER).write_text("{}")
    again = preemption_of(Trainer(tmp_path))
    assert not (tmp_path / MARKER).exists()
    again.trainer.accelerator.load_state(str(checkpoint))
    assert again.resumed_at == 9


def test_one_signalled_rank_of_two_stops_both(tmp_path: Path) -> None:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(HERE / "preemption_trainer.py")]
    variables = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *launch, str(tmp_path), "1"], env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, "torchrun makes one of every code"
    assert [(tmp_path / f"code{rank}").read_text() for rank in range(2)] == [str(EXIT_CODE)] * 2, done.stderr[-3000:]
    marker = json.loads((tmp_path / MARKER).read_text())
    # It came in the window of step 3, whose end is the first moment at which anybody may leave.
    assert (marker["rank"], marker["signal"], marker["checkpoint"]) == (1, "SIGUSR1", "checkpoint-3")
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-3"]
