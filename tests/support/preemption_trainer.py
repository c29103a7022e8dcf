"""A fake trainer around a real Accelerator that can be preempted; run by torchrun it is one rank of several."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import torch
from accelerate import Accelerator

from gh200_lab.checkout import see_this_checkout

if __name__ == "__main__":
    see_this_checkout()

from simpletuner.gh200.preemption.hooks import Preemption
from simpletuner.gh200.trainer import TrainerHooks


class Trainer:
    """Saves as upstream does: its own hook draws from every generator, Accelerate notes them afterwards."""

    full = False

    def __init__(self, directory: Path) -> None:
        self.accelerator = Accelerator(cpu=True)
        self.accelerator.register_save_state_pre_hook(self._draw)
        self.config = SimpleNamespace(output_dir=str(directory))
        self.state = {"global_step": 4, "current_epoch": 1}
        self._gh200_step = 9
        self.asked = self.saves = 0

    def _draw(self, *_: Any) -> None:
        random.random(), numpy.random.random(), torch.rand(1)

    def _exit_on_signal(self) -> None:
        self.asked += 1

    _gh200_telemetry = None
    _gh200_count_micro_batch = TrainerHooks._gh200_count_micro_batch

    def checkpoint_state_save(self, output_dir: str, suffix: str | None = None) -> str:
        if self.full:
            raise OSError(28, "No space left on device")
        self.saves += 1
        path = f"{output_dir}/checkpoint-{self.state['global_step']}"
        self.accelerator.save_state(path)
        return path

    def _run_standard_checkpoint(self, webhook_message: str | None, parent_loss: Any, epoch: int) -> str:
        return self.checkpoint_state_save(self.config.output_dir)


def preemption_of(trainer: Trainer) -> Preemption:
    preemption = Preemption(SimpleNamespace(at_end=lambda call: None))  # type: ignore[arg-type]
    preemption.join(trainer)
    preemption.training_begins()
    return preemption


def train(directory: Path, signalled: int) -> None:
    """Windows of three micro-batches; in the middle of the third one rank is signalled, and no other."""
    trainer = Trainer(directory)
    trainer.state["global_step"] = 0
    preemption = preemption_of(trainer)
    preemption.signals.listen()
    for micro_batch in range(60):
        preemption.stop_if_requested()
        time.sleep(0.02)
        if micro_batch == 7 and trainer.accelerator.process_index == signalled:
            os.kill(os.getpid(), signal.SIGUSR1)
        trainer.state["global_step"] = (micro_batch + 1) // 3


if __name__ == "__main__":
    try:
        train(Path(sys.argv[1]), int(sys.argv[2]))
        code: Any = 0
    except SystemExit as end:
        code = end.code
    (Path(sys.argv[1]) / f"code{os.environ['RANK']}").write_text(str(code))
    sys.exit(code)
