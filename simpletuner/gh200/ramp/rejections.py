"""Where the ramp or its meter is rejected before anything is loaded: what its sums would be wrong with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .windows import RampError

# The operator's own key, or the launcher's: what would go wrong.
_INEXACT = {
    "DeepSpeed": "its engine keeps its own accumulation count and divides by it, so a change never reaches it",
    "optimizer_release_gradients": "the optimizer steps inside backward by a fixed `step % accumulation` rule that "
    "knows no windows",
    "ramtorch": "upstream clears RamTorch gradients after every micro-batch, so nothing accumulates in a window",
}
_UNMEASURED = {
    "DeepSpeed": "its engine keeps the gradients to itself",
    "fsdp_enable": "a rank only has a piece of each gradient",
    "context_parallel_size": "ranks share their samples",
    "optimizer_release_gradients": "gradients are gone before a window is full",
    "ramtorch": "gradients are cleared after every micro-batch",
    "distillation_method": "a distiller makes backward passes of its own",
}


def reject_where_inexact(trainer: Any) -> None:
    """Rejects the ramp where its gradients would be wrong."""
    if found := _used(trainer, _INEXACT):
        what = "The gradient accumulation ramp is rejected in this run: its gradients would be wrong."
        fix = "turn that off, or set gh200_optimizations.enable_batch_size_rampup to false"
        raise RampError(what, why=found, fix=fix)


def reject_where_unmeasured(trainer: Any) -> None:
    """Rejects the noise scale where gradients cannot be measured."""
    if found := _used(trainer, _UNMEASURED):
        where = "gh200_optimizations.measure_gradient_noise_scale"
        fix = 'turn that off, or leave out measure_gradient_noise_scale and the shape "measured"'
        raise RampError("The gradient noise scale cannot be measured in this run.", where=where, why=found, fix=fix)


def _used(trainer: Any, reasons: Mapping[str, str]) -> str:
    config = vars(trainer.config)
    not_a_switch = {
        "DeepSpeed": getattr(trainer.accelerator.distributed_type, "value", "") == "DEEPSPEED",
        "context_parallel_size": int(config.get("context_parallel_size") or 0) > 1,
        "distillation_method": config.get("distillation_method") not in (None, "", "none"),
    }
    return "\n".join(f"{key}: {why}" for key, why in reasons.items() if not_a_switch.get(key, config.get(key)))
