"""Lets the learning rate follow each window's effective batch, around the optimizer step and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .schedule import RampError

if TYPE_CHECKING:
    from .apply import RampControl

# "linear" and "sqrt" need nothing of upstream's; "follow" does what its `lr_scale` does.
FOLLOWING = frozenset({"follow", "linear", "sqrt"})


def follow_windows(control: RampControl) -> None:
    """Scale every parameter group for the duration of a step; schedulers and checkpoints see the unscaled rate."""
    if control.lr_scaling not in FOLLOWING:
        return
    optimizer = control.trainer.optimizer
    optimizer = getattr(optimizer, "optimizer", optimizer)
    if not hasattr(optimizer, "register_step_pre_hook"):
        raise RampError(
            f"The learning rate cannot follow the ramp with the optimizer {type(optimizer).__name__}.",
            why="it has no step hooks, as torch's optimizers have",
            fix='set gh200_optimizations.batch_rampup_lr_scaling to "target" or "initial"',
        )
    kept: list[Any] = []

    def scale(stepping: Any, *_: Any) -> None:
        kept[:] = [group["lr"] for group in stepping.param_groups]
        for group in stepping.param_groups:
            group["lr"] = group["lr"] * control.lr_factor()

    def restore(stepping: Any, *_: Any) -> None:
        for group, rate in zip(stepping.param_groups, kept, strict=True):
            group["lr"] = rate

    optimizer.register_step_pre_hook(scale)
    optimizer.register_step_post_hook(restore)
