"""Buckets against the largest accumulation window: upstream splits by whole windows, and stops minutes later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..config.problems import Problem, join_path
from ..ramp.schedule import GH200GradientRamp
from .keys import truth
from .samples import Samples

RAMP_BLOCK = "gh200_optimizations"


@dataclass(frozen=True)
class WindowBound:
    """The largest window of a run, and the key that makes it so large."""

    batch_size: int
    processes: int
    accumulation: int
    key: str


def largest_window(ramp: GH200GradientRamp | None, sizes: tuple[int, int], processes: int) -> WindowBound:
    """The largest window of a run, with or without a ramp."""
    batch_size, accumulation = sizes
    key = "gradient_accumulation_steps"
    if ramp is None:
        return WindowBound(batch_size, processes, accumulation, key)
    if ramp.table:
        key = f"{RAMP_BLOCK}.batch_rampup_table"
    elif ramp.initial > ramp.target:
        key = f"{RAMP_BLOCK}.initial_effective_batch_size"
    elif ramp.target_effective_batch_size is not None:
        key = f"{RAMP_BLOCK}.target_effective_batch_size"
    return WindowBound(batch_size, processes, ramp.largest, key)


def window_problems(samples: Samples, window: WindowBound, config: Mapping[str, Any]) -> Iterator[Problem]:
    """The bucket that cannot fill the window, the formula, and the fix by the operator's own keys."""
    batch_size = samples.batch_size or window.batch_size
    need = batch_size * window.processes * window.accumulation
    repeated = samples.repeats + 1
    short = {name: count for name, count in samples.buckets.items() if count * repeated < need}
    if prunes(config):
        short = {name: count for name, count in short.items() if count * repeated >= batch_size}
    if not short or (truth(config.get("allow_dataset_oversubscription")) and not samples.repeats):
        return
    name, count = min(short.items(), key=lambda item: (item[1], item[0]))
    others = f" (and {len(short) - 1} more buckets)" if len(short) > 1 else ""
    enough = -(-need // count) - 1
    unit = batch_size * window.processes
    most = count * repeated // unit * unit
    lower = f"{most} or less" if "effective" in window.key else f"{most // unit} or less"
    # A key that is not written is not the one to change.
    written = "." in window.key or config.get(window.key) is not None
    key = window.key if written else join_path("datasets", samples.index)
    first = f"set {window.key} to {lower}, " if most and written else ""
    yield Problem(
        key,
        f'dataset "{samples.id}": bucket {name} has {count} images x ({samples.repeats} repeats + 1) = '
        f"{count * repeated} samples{others}, and the largest window takes train_batch_size {batch_size} x "
        f"{window.processes} processes x accumulation {window.accumulation} = {need}. Fix: {first}set "
        f"{join_path('datasets', samples.index, 'repeats')} to {enough}, or use fewer buckets (crop with crop_aspect_buckets)",
    )


def pruned(samples: Samples, window: WindowBound, config: Mapping[str, Any]) -> dict[str, int]:
    """Buckets upstream throws away whole because they do not fill one micro-batch."""
    size = samples.batch_size or window.batch_size
    if not prunes(config):
        return {}
    return {name: count for name, count in samples.buckets.items() if count * (samples.repeats + 1) < size}


def prunes(config: Mapping[str, Any]) -> bool:
    """Whether upstream drops buckets smaller than a batch."""
    return config.get("minimum_image_size") is not None and not truth(config.get("disable_bucket_pruning"))
