"""Lets the learning rate and beta2 follow each window's size, around the optimizer step and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .schedule import RampError

if TYPE_CHECKING:
    from .apply import RampControl

# "linear" and "sqrt" need nothing of upstream's; "follow" does what its `lr_scale` does.
FOLLOWING = frozenset({"follow", "linear", "sqrt"})


def follow_windows(control: RampControl) -> None:
    """Change every parameter group for the duration of a step; schedulers and checkpoints see what was asked for."""
    rate_follows, beta2_follows = control.lr_scaling in FOLLOWING, control.beta2_in_samples
    if not rate_follows and not beta2_follows:
        return
    optimizer = control.trainer.optimizer
    optimizer = getattr(optimizer, "optimizer", optimizer)
    _reject(optimizer, beta2_follows=beta2_follows)
    kept: list[dict[str, Any]] = []

    def change(stepping: Any, *_: Any) -> None:
        kept[:] = [{key: group[key] for key in ("lr", "betas") if key in group} for group in stepping.param_groups]
        for group in stepping.param_groups:
            if rate_follows:
                group["lr"] = group["lr"] * control.lr_factor()
            if beta2_follows:
                first, second, *more = group["betas"]
                group["betas"] = (first, second ** control.beta2_power(), *more)

    def restore(stepping: Any, *_: Any) -> None:
        for group, values in zip(stepping.param_groups, kept, strict=True):
            group.update(values)

    optimizer.register_step_pre_hook(change)
    optimizer.register_step_post_hook(restore)


def _reject(optimizer: Any, *, beta2_follows: bool) -> None:
    name = type(optimizer).__name__
    if not hasattr(optimizer, "register_step_pre_hook"):
        raise RampError(
            f"Learning rate and beta2 cannot follow the ramp with the optimizer {name}.",
            why="it has no step hooks, as torch's optimizers have",
            fix='set gh200_optimizations.batch_rampup_lr_scaling to "target" or "initial" and leave out '
            "batch_rampup_beta2",
        )
    if beta2_follows and any(len(group.get("betas") or ()) < 2 for group in optimizer.param_groups):
        raise RampError(
            f"beta2 cannot be kept in samples with the optimizer {name}.",
            where="gh200_optimizations.batch_rampup_beta2",
            why="its parameter groups have no beta2",
            fix="leave the key out, or use an optimizer of Adam's kind",
        )
