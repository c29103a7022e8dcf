"""From a training config to its ramp: the one way for training, the ramp command and the diagnostic."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ..config.blocks import loaded_config
from ..config.dataset_file import batch_sizes, micro_batch_size
from ..config.schema import Optimizations
from ..config.sources import read_batch_sizes, read_config_settings
from .messages import reject_what_does_not_ramp
from .schedule import GH200GradientRamp, RampError


def ramp_from(asked: Optimizations, config: Mapping[str, object], processes: int) -> GH200GradientRamp:
    """The schedule for the settings (`gh200_optimizations`) and upstream's own config, parsed or as in a file."""
    sizes = read_batch_sizes(config)
    size = micro_batch_size(config, sizes.train_batch_size)
    if size is None:
        each = batch_sizes(config, sizes.train_batch_size)
        raise RampError(
            "The gradient accumulation ramp needs one train_batch_size.",
            where="the datasets: " + ", ".join(f"{name} has {count}" for name, count in each.items()),
            why="the effective batch of a window would depend on which dataset its micro-batches come from",
            fix="give all datasets the same train_batch_size, or set gh200_optimizations.enable_batch_size_rampup to false",
        )
    ramp = GH200GradientRamp(
        initial_effective_batch_size=asked.initial_effective_batch_size,
        target_effective_batch_size=asked.target_effective_batch_size,
        batch_rampup_steps=asked.batch_rampup_steps,
        train_batch_size=size,
        num_processes=processes,
        gradient_accumulation_steps=sizes.gradient_accumulation_steps,
        shape=asked.batch_rampup_shape,
        unit=asked.batch_rampup_unit,
        table=tuple(asked.batch_rampup_table or ()),
    )
    reject_what_does_not_ramp(ramp)
    return ramp


def ramp_from_config(path: Path, processes: int) -> GH200GradientRamp:
    """The ramp a run with this config would have here, or the error it would end with."""
    config = loaded_config(path)
    asked = read_config_settings(config, os.environ).optimizations
    if not asked.enable_batch_size_rampup:
        raise RampError(
            "This config asks for no ramp.",
            where=str(path),
            fix="set gh200_optimizations.enable_batch_size_rampup to true",
        )
    return ramp_from(asked, config, processes)
