"""Hooks of a Trainer for preemption, between two accumulation windows."""

from __future__ import annotations

import logging
import random
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy
import torch
from accelerate.utils import gather

from ..runtime import PREEMPTION, Run, current
from .checkpoints import Checkpoints
from .marker import remove_marker, save_micro_step, saved_micro_step, write_marker
from .signals import EXIT_CODE, PreemptionError, Signals

logger = logging.getLogger("gh200.preemption")


@dataclass(frozen=True)
class RandomStates:
    """The random generators that Accelerate puts into a checkpoint, at one point in time."""

    of_python: Any
    of_numpy: Any
    of_torch: torch.Tensor
    of_cuda: list[torch.Tensor]

    @classmethod
    def capture(cls) -> Self:
        """The current states."""
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        return cls(random.getstate(), numpy.random.get_state(), torch.get_rng_state(), cuda)

    def restore(self) -> None:
        """Set all generators to these states."""
        random.setstate(self.of_python)
        numpy.random.set_state(self.of_numpy)
        torch.set_rng_state(self.of_torch)
        if self.of_cuda:
            torch.cuda.set_rng_state_all(self.of_cuda)


class Preemption(Checkpoints):
    """Handles signals from the start of a run; records what its Trainer saves once there is an Accelerator."""

    feature, rejection = "checkpoint_on_signal", PreemptionError

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.signals = Signals()
        self.window: int | None = None
        self.resumed_at: int | None = None
        run.at_end(self.signals.stop_listening)

    def join(self, trainer: Any) -> None:
        """Install the overrides and checkpoint hooks on a Trainer."""
        self.trainer = trainer
        self.install(trainer)
        accelerator = trainer.accelerator
        accelerator.register_save_state_pre_hook(self._save)
        accelerator.register_load_state_pre_hook(self._load)
        if accelerator.is_main_process:
            remove_marker(Path(trainer.config.output_dir))

    def training_begins(self) -> None:
        """From here on a signal requests a checkpoint."""
        self.window = int(self.trainer.state["global_step"])
        self.signals.training = True

    def _save(self, models: Any, weights: Any, output_dir: str) -> None:
        if self.trainer.accelerator.is_local_main_process:
            save_micro_step(Path(output_dir), self.trainer._gh200_step)

    def _load(self, models: Any, input_dir: str) -> None:
        self.resumed_at = saved_micro_step(Path(input_dir))

    def stop_if_requested(self) -> None:
        """Before every micro-batch. After an accumulation window all ranks exchange their signals, at the same step."""
        step = int(self.trainer.state["global_step"])
        if not self.signals.training or step == self.window:
            return
        self.window = step
        request = self._request()
        if request is not None:
            self._stop(step, *request)

    def _request(self) -> tuple[int, str] | None:
        """The first rank that received a signal, and its name: one rank is enough for all."""
        accelerator = self.trainer.accelerator
        numbers = [self.signals.asked_with]
        if accelerator.num_processes > 1:
            numbers = gather(torch.tensor(numbers, device=accelerator.device)).tolist()
        return next(((rank, signal.Signals(number).name) for rank, number in enumerate(numbers) if number), None)

    def _stop(self, step: int, rank: int, name: str) -> None:
        accelerator = self.trainer.accelerator
        checkpoint = self._checkpoint(step, name)
        accelerator.wait_for_everyone()
        self.signals.training, self.signals.saved = False, True
        if accelerator.is_main_process:
            output = Path(self.trainer.config.output_dir)
            marker = write_marker(output, checkpoint=Path(checkpoint).name, step=step, signal=name, rank=rank)
            text = "GH200: rank %d received %s: stopped after step %d with %s, exit code %d; scripts read %s."
            logger.warning(text, rank, name, step, checkpoint, EXIT_CODE, marker)
        # A launcher ends all ranks when one exits: all must be here first.
        accelerator.wait_for_everyone()
        accelerator.end_training()
        raise SystemExit(EXIT_CODE)

    def _checkpoint(self, step: int, name: str) -> str:
        if self.saved is not None and self.saved[0] == step:
            return self.saved[1]
        states = RandomStates.capture()
        # The last hook before Accelerate saves the generators: SimpleTuner's own hooks draw from them.
        handle = self.trainer.accelerator.register_save_state_pre_hook(lambda *_: states.restore())
        try:
            save, epoch = self.trainer._run_standard_checkpoint, self.trainer.state["current_epoch"]
            return str(save(webhook_message=f"{name} at step {step}", parent_loss=None, epoch=epoch))
        finally:
            handle.remove()


def _preemption() -> Preemption | None:
    run = current()
    return run.part(Preemption) if run is not None and run.settings.optimizations.checkpoint_on_signal else None


def listen_for_signals(run: Run) -> None:
    """As soon as the settings are known: a signal may arrive while models are loaded."""
    preemption = _preemption()
    if preemption is not None:
        preemption.signals.listen()
        run.report_on(PREEMPTION, "SIGTERM and SIGUSR1")


def join_trainer(trainer: Any) -> None:
    """Once the Accelerator exists; saves are overridden in every run with a key of ours."""
    preemption = _preemption()
    if preemption is not None:
        preemption.join(trainer)
    elif current() is not None:
        Checkpoints(trainer).install(trainer)


def stop_if_requested() -> None:
    """Before the loop counts a micro-batch: a run that stops here has not counted it."""
    preemption = _preemption()
    if preemption is not None:
        preemption.stop_if_requested()


def accept_signals(step: int) -> int:
    """The micro-batch counter to start from: the given one, or that of the checkpoint."""
    preemption = _preemption()
    if preemption is None:
        return step
    preemption.training_begins()
    return step if preemption.resumed_at is None else preemption.resumed_at
