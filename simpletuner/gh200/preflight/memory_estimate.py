"""What a run takes: steps, samples and epochs; weights, gradients and optimizer; checkpoints on disk."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..config.keys import AUTO
from ..config.profile import CHOSEN
from ..memory.driver import CudaError, Driver, load_driver
from ..memory.family import platform
from ..memory.limits import memory_limits
from ..ramp.schedule import GH200GradientRamp
from .config import existing_part, gb
from .keys import number, truth
from .model import Weights, find, model_of, weights_of
from .report import Kind
from .upstream_keys import Upstream, upstream_record
from .window_check import WindowBound

if TYPE_CHECKING:
    from ..config.schema import Settings

_OFFLOAD = "gh200_optimizations.managed_memory"
_HALF, _WHOLE = 2, 4
_BITS = re.compile(r"(?:int|fp|nf)(\d+)")
# With one of these, weights are not all on one GPU at once.
_ELSEWHERE = ("ramtorch", "fsdp_enable", "deepspeed_config", "musubi_blocks_to_swap")
_UNSET = ("", "none", "false", "no", "off", "0", "0.0")


@dataclass(frozen=True)
class Memory:
    """Bytes on the device; what a forward pass needs beside them is not known beforehand."""

    weights: int
    gradients: int
    optimizer: int
    checkpoint: int

    @property
    def known(self) -> int:
        """What can be estimated: all but activations."""
        return self.weights + self.gradients + self.optimizer


@dataclass(frozen=True)
class Length:
    """`samples` is what the steps together take; None where the steps come from epochs of an unknown dataset."""

    steps: int | None
    samples: int | None
    epochs: float | None


def memory_of(weights: Weights, config: Mapping[str, Any]) -> Memory:
    """Adam-like optimizers keep two values per trained one, in the precision of what they train or of their name."""
    lora = str(config.get("model_type", "full")).lower() == "lora"
    rank = int(number(config.get("lora_rank")) or 16)
    trained = weights.adapted * rank if lora else weights.trained
    bits = [int(found) for found in _BITS.findall(str(config.get("base_model_precision", "")))] if lora else []
    base = weights.trained * min([8 * _HALF, *bits]) // 8
    element = _WHOLE if lora or is_fp32(config) else _HALF
    state = 2 * (_HALF if "bf16" in str(config.get("optimizer", "")) else element)
    trainable = trained * element
    ema = trained * element if truth(config.get("use_ema")) else 0
    return Memory(
        weights=base + trainable if lora else trainable,
        gradients=trainable,
        optimizer=trained * state + ema,
        checkpoint=trainable + trained * state + ema,
    )


def is_fp32(config: Mapping[str, Any]) -> bool:
    """Whether weights, and with them gradients, optimizer state and EMA, have 4 bytes a parameter."""
    return str(config.get("mixed_precision") or "bf16").lower() in ("no", "fp32")


def estimate_of(config: Mapping[str, Any], upstream: Upstream | None, environ: Mapping[str, str]) -> Memory | None:
    """None where the weights are not on this machine."""
    family = (upstream.families if upstream else {}).get(str(config.get("model_family", "")).lower(), {})
    directory = find(model_of(config, upstream) or "", environ).directory
    weights = weights_of(directory, str(family.get("subfolder") or "unet")) if directory else None
    return memory_of(weights, config) if weights else None


_BEYOND = '"gh200_optimizations.managed_memory" to "auto", '


def gpu_memory(environ: Mapping[str, str]) -> int:
    """Bytes of the smallest GPU this run may use; 0 where it uses none."""
    if environ.get("ACCELERATE_USE_CPU", "").lower() in ("true", "1", "yes"):
        return 0
    driver = load_driver()
    if not isinstance(driver, Driver):
        return 0
    try:
        if platform(0).one_pool:
            return min(driver.total_memory(0), memory_limits()[0].bytes)
        return min(driver.total_memory(device) for device in range(driver.device_count))
    except CudaError:
        return 0


def on_one_pool() -> bool:
    """Whether what the GPU takes is missing to the CPU."""
    try:
        return platform(0).one_pool
    except CudaError:
        return False


def shortage_of(memory: Memory, config: Mapping[str, Any], gpu: int) -> tuple[Kind | None, str]:
    """("problems" or "warnings", what is missing on the GPU), or nothing. Weights alone are certain, the rest is an estimate."""
    if not gpu or memory.known <= gpu or splits_weights(config):
        return None, ""
    certain = memory.weights > gpu
    need = memory.weights if certain else memory.known
    return (
        "problems" if certain else "warnings",
        f"the {'weights' if certain else 'weights, gradients and optimizer'} take about {gb(need)}, the GPU has "
        f"{gb(gpu)}; set {'' if on_one_pool() else _BEYOND}base_model_precision to a smaller one, "
        'or model_type to "lora"',
    )


def splits_weights(config: Mapping[str, Any]) -> bool:
    """Whether a key of SimpleTuner's keeps part of the weights away from this GPU."""
    return any(_is_set(config.get(key)) for key in _ELSEWHERE)


def with_chosen_offload(settings: Settings, config: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    """The settings of a run that starts here."""
    if settings.optimizations.profile != AUTO:
        return settings
    upstream, _ = upstream_record(False, lambda text: None)
    return with_offload(settings, config, estimate_of(config, upstream, environ), gpu_memory(environ))


def with_offload(settings: Settings, config: Mapping[str, Any], memory: Memory | None, gpu: int) -> Settings:
    """With the choice of the profile "auto": memory beyond HBM only where the estimate exceeds it."""
    if settings.optimizations.profile != AUTO or settings.origins[_OFFLOAD] != "default":
        return settings
    kind, text = shortage_of(memory, config, gpu) if memory else (None, "")
    unknown = "the weights are not on this machine yet, so their size is not known"
    why = "by the estimate the GPU's memory suffices" if memory else unknown
    why = text.partition(";")[0] if kind else why if gpu else "there is no GPU here"
    chosen = settings.optimizations.model_copy(update={"managed_memory": AUTO if kind else "off"})
    return replace(settings, optimizations=chosen, origins={**settings.origins, _OFFLOAD: f"{CHOSEN}{why}"})


def _is_set(value: object) -> bool:
    return str(value).strip().lower() not in _UNSET


def length_of(config: Mapping[str, Any], ramp: GH200GradientRamp | None, window: WindowBound, per_epoch: int) -> Length:
    """Steps, samples and epochs a config asks for."""
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


def free_disk(directory: str) -> int | None:
    """Free bytes where a directory is, or where it would be made."""
    try:
        return shutil.disk_usage(existing_part(directory)).free
    except OSError:
        return None
