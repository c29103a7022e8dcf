"""The moments of a Trainer at which a run may leave: a window has closed and the next one has not begun."""

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

from ..overrides import Overrides, override
from ..runtime import LEAVE, Run, current
from .marker import keep_place, mark, place_in, unmark
from .signals import EXIT_CODE, PreemptionError, Signals

logger = logging.getLogger("gh200.leave")


@dataclass(frozen=True)
class RandomStates:
    """The random generators that Accelerate puts into a checkpoint, as they were at one moment."""

    of_python: Any
    of_numpy: Any
    of_torch: torch.Tensor
    of_cuda: list[torch.Tensor]

    @classmethod
    def now(cls) -> Self:
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        return cls(random.getstate(), numpy.random.get_state(), torch.get_rng_state(), cuda)

    def put_back(self) -> None:
        random.setstate(self.of_python)
        numpy.random.set_state(self.of_numpy)
        torch.set_rng_state(self.of_torch)
        if self.of_cuda:
            torch.cuda.set_rng_state_all(self.of_cuda)


class Preemption(Overrides):
    """Listens from the beginning of a run; notes what its Trainer saves once there is an Accelerator."""

    upstream_class = "Trainer"
    feature, rejection = "checkpoint_on_signal", PreemptionError

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.signals = Signals()
        self.trainer: Any = None
        self.window: int | None = None
        self.saved: tuple[int, str] | None = None
        self.resumed_at: int | None = None
        run.at_end(self.signals.stop_listening)

    def join(self, trainer: Any) -> None:
        self.trainer = trainer
        self.install(trainer)
        accelerator = trainer.accelerator
        accelerator.register_save_state_pre_hook(self._save)
        accelerator.register_load_state_pre_hook(self._load)
        if accelerator.is_main_process:
            unmark(Path(trainer.config.output_dir))

    def training_begins(self) -> None:
        self.window = int(self.trainer.state["global_step"])
        self.signals.training = True

    def _save(self, models: Any, weights: Any, output_dir: str) -> None:
        if self.trainer.accelerator.is_local_main_process:
            keep_place(Path(output_dir), self.trainer._gh200_step)

    def _load(self, models: Any, input_dir: str) -> None:
        self.resumed_at = place_in(Path(input_dir))

    @override
    def checkpoint_state_save(self, *args: Any, **kwargs: Any) -> Any:
        path = self.upstream.checkpoint_state_save(*args, **kwargs)
        self.saved = int(self.trainer.state["global_step"]), str(path)
        return path

    def leave_if_asked(self) -> None:
        """Before every micro-batch. Where a window has just closed, all ranks ask, at the same place."""
        step = int(self.trainer.state["global_step"])
        if not self.signals.training or step == self.window:
            return
        self.window = step
        told = self._told()
        if told is not None:
            self._leave(step, *told)

    def _told(self) -> tuple[int, str] | None:
        """Who was told to leave, and by which signal: one rank is enough for all."""
        accelerator = self.trainer.accelerator
        numbers = [self.signals.asked_with]
        if accelerator.num_processes > 1:
            numbers = gather(torch.tensor(numbers, device=accelerator.device)).tolist()
        return next(((rank, signal.Signals(number).name) for rank, number in enumerate(numbers) if number), None)

    def _leave(self, step: int, rank: int, name: str) -> None:
        accelerator = self.trainer.accelerator
        checkpoint = self._checkpoint(step, name)
        accelerator.wait_for_everyone()
        self.signals.training, self.signals.leaving = False, True
        if accelerator.is_main_process:
            output = Path(self.trainer.config.output_dir)
            marker = mark(output, checkpoint=Path(checkpoint).name, step=step, signal=name, rank=rank)
            text = "GH200: %s came to rank %d: leaving after step %d with %s, exit code %d; %s says so to a script."
            logger.warning(text, name, rank, step, checkpoint, EXIT_CODE, marker)
        # A rank that ends makes its launcher end the others: none may be before this place.
        accelerator.wait_for_everyone()
        accelerator.end_training()
        raise SystemExit(EXIT_CODE)

    def _checkpoint(self, step: int, name: str) -> str:
        if self.saved is not None and self.saved[0] == step:
            return self.saved[1]
        states = RandomStates.now()
        # The last hook before Accelerate notes the generators: upstream's own draw from them.
        handle = self.trainer.accelerator.register_save_state_pre_hook(lambda *_: states.put_back())
        try:
            save, epoch = self.trainer._run_standard_checkpoint, self.trainer.state["current_epoch"]
            return str(save(webhook_message=f"{name} at step {step}", parent_loss=None, epoch=epoch))
        except Exception as error:
            raise PreemptionError(
                f"{name} asked for a checkpoint, and it could not be written.",
                where=str(self.trainer.config.output_dir),
                why=f"{type(error).__name__}: {error}",
                fix="the run goes on from the newest checkpoint that is whole; make room there before it does",
            ) from error
        finally:
            handle.remove()


def _leaving() -> Preemption | None:
    run = current()
    return run.part(Preemption) if run is not None and run.settings.optimizations.checkpoint_on_signal else None


def listen_for_signals(run: Run) -> None:
    """As early as the settings are known: a signal may come while models are loaded."""
    leaving = _leaving()
    if leaving is not None:
        leaving.signals.listen()
        run.report_on(LEAVE, "SIGTERM and SIGUSR1")


def join_trainer(trainer: Any) -> None:
    """The Accelerator exists."""
    leaving = _leaving()
    if leaving is not None:
        leaving.join(trainer)


def leave_if_asked() -> None:
    """The loop is about to count a micro-batch; a run that leaves here has not counted it."""
    leaving = _leaving()
    if leaving is not None:
        leaving.leave_if_asked()


def accept_signals(step: int) -> int:
    """The counter of micro-batches where upstream begins with it, or where the checkpoint had it."""
    leaving = _leaving()
    if leaving is None:
        return step
    leaving.training_begins()
    return step if leaving.resumed_at is None else leaving.resumed_at
