"""A schedule-free optimizer cannot start where DeepSpeed is not installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace

from scene import CannotTry


def reproduce(directory: Path) -> str | None:
    """The fault in one sentence, or None."""
    from simpletuner.helpers.training.trainer import Trainer

    if importlib.util.find_spec("deepspeed") is not None:
        raise CannotTry("DeepSpeed is installed")
    config = SimpleNamespace(
        optimizer="adamw_schedulefree", use_deepspeed_scheduler=False, max_train_steps=10, lr_warmup_steps=0
    )
    trainer = SimpleNamespace(config=config, optimizer=object(), sidecar_optimizer=None)
    try:
        Trainer.init_lr_scheduler(trainer)
    except AttributeError as error:
        return f"the learning rate scheduler cannot be made: {error}"
    return None
