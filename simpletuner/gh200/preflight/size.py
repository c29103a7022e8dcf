"""What a run takes: steps, samples and epochs; weights, gradients and optimizer; checkpoints on disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..ramp.schedule import GH200GradientRamp
from .keys import number, truth
from .model import Weights
from .windows import Window

_HALF, _WHOLE = 2, 4
_QUANTISED = ("int", "fp8", "uint", "nf4")


@dataclass(frozen=True)
class Memory:
    """Bytes on the device; what a forward pass needs beside them is not known beforehand."""

    weights: int
    gradients: int
    optimizer: int
    checkpoint: int

    @property
    def known(self) -> int:
        return self.weights + self.gradients + self.optimizer


@dataclass(frozen=True)
class Length:
    """`samples` is what the steps together take; None where the steps come from epochs of an unknown dataset."""

    steps: int | None
    samples: int | None
    epochs: float | None


def memory_of(weights: Weights, config: Mapping[str, Any]) -> Memory:
    """Adam-like optimizers keep two values per trained one, in the precision of their name."""
    optimizer = str(config.get("optimizer", ""))
    state = 2 * (_HALF if "bf16" in optimizer else _WHOLE)
    quantised = str(config.get("base_model_precision", "no_change")).startswith(_QUANTISED)
    lora = str(config.get("model_type", "full")).lower() == "lora"
    rank = int(number(config.get("lora_rank")) or 16)
    trained = weights.adapted * rank if lora else weights.trained
    base = weights.trained // (2 if quantised and lora else 1) * _HALF
    held = trained * (_WHOLE if lora else _HALF)
    ema = trained * _HALF if truth(config.get("use_ema")) else 0
    return Memory(
        weights=base + (held if lora else 0) + (weights.vae + weights.text_encoders) * _HALF,
        gradients=held,
        optimizer=trained * state + ema,
        checkpoint=held + trained * state + ema,
    )


def length_of(config: Mapping[str, Any], ramp: GH200GradientRamp | None, window: Window, per_epoch: int) -> Length:
    steps = number(config.get("max_train_steps"))
    unit = window.batch_size * window.processes
    if steps:
        micro = ramp.micro_batches_for(int(steps)) if ramp else int(steps) * window.accumulation
        return Length(int(steps), micro * unit, micro * unit / per_epoch if per_epoch else None)
    epochs = number(config.get("num_train_epochs")) or 1
    if not per_epoch:
        return Length(None, None, epochs)
    micro = int(per_epoch * epochs) // unit
    return Length(ramp.steps_for(micro) if ramp else micro // window.accumulation, micro * unit, epochs)


def checkpoints_of(config: Mapping[str, Any], steps: int | None) -> int:
    """How many lie on the disk at once; upstream writes the new one before it removes the oldest."""
    if config.get("checkpoint_step_interval") is not None:
        interval = number(config["checkpoint_step_interval"])
    else:
        interval = number(config.get("checkpointing_steps")) or 500
    limit = number(config.get("checkpoints_total_limit"))
    written = int(steps // interval) if steps and interval else 0
    return min(written, int(limit if limit is not None else 5) + 1) if limit != 0 else written


def free_disk(folder: str) -> int | None:
    """Free bytes where a folder is, or where it would be made."""
    place = Path(folder).expanduser().absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        return shutil.disk_usage(place).free if os.access(place, os.R_OK) else None
    except OSError:
        return None
