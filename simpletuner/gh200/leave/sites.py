"""What the Trainer's base class calls; nothing is listened to, and nothing stood in for, unless a key asks."""

from __future__ import annotations

from typing import Any

from ..run import LEAVE, Run, current
from .moments import Leaving


def _leaving() -> Leaving | None:
    run = current()
    return run.part(Leaving) if run is not None and run.settings.optimizations.checkpoint_on_signal else None


def begin(run: Run) -> None:
    """As early as the settings are known: a signal may come while models are loaded."""
    leaving = _leaving()
    if leaving is not None:
        leaving.signals.listen()
        run.report_on(LEAVE, "SIGTERM and SIGUSR1")


def join(trainer: Any) -> None:
    """The Accelerator exists."""
    leaving = _leaving()
    if leaving is not None and trainer.accelerator is not None:
        leaving.join(trainer)


def leave_if_asked() -> None:
    """The loop is about to count a micro-batch; a run that leaves here has not counted it."""
    leaving = _leaving()
    if leaving is not None:
        leaving.leave_if_asked()


def training_begins(step: int) -> int:
    """The counter of micro-batches where upstream begins with it, or where the checkpoint had it."""
    leaving = _leaving()
    if leaving is None:
        return step
    leaving.training_begins()
    return step if leaving.resumed_at is None else leaving.resumed_at
