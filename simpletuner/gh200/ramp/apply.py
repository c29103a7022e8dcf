"""Puts the ramp into a Trainer: checks it can be exact there, opens each window, answers upstream's gates."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from ..run_log import each_step
from .answers import TrainerAnswers, answer_validation
from .console import show_debug_lines
from .counts import EpochCounts
from .lr import FOLLOWING, follow_windows
from .reader import ramp_from
from .resume import ResumeWatch
from .schedule import GH200GradientRamp, RampError
from .windows import SAMPLES

if TYPE_CHECKING:
    from ..settings.schema import Settings

logger = logging.getLogger("gh200.ramp")
_CONTROL = "_gh200_ramp"


class RampControl:
    """The ramp of one Trainer. The window is the optimizer step, so the training state alone says where it is."""

    def __init__(self, trainer: Any, ramp: GH200GradientRamp, lr_scaling: str) -> None:
        self.trainer, self.ramp, self.lr_scaling = trainer, ramp, lr_scaling
        self.counts = EpochCounts(self)
        self.window: int | None = None
        self.micro_step = 0
        self.epoch_ended = False

    @property
    def accumulation_steps(self) -> int:
        return int(self.trainer.config.gradient_accumulation_steps)

    def set_accumulation(self, steps: int) -> None:
        """Config and Accelerator always agree; anything else scales a gradient wrongly."""
        self.trainer.config.gradient_accumulation_steps = steps
        self.trainer.config.total_batch_size = steps * self.ramp.samples_per_micro_batch
        self.trainer.accelerator.gradient_accumulation_steps = steps

    def begin(self, step: int) -> None:
        """Before a micro-batch: open the window of the coming optimizer step if it is not open yet."""
        self.micro_step, self.epoch_ended = step, False
        window = self.trainer.state["global_step"]
        if window != self.window:
            self._open(window)
        self.counts.note_epoch_step(window)

    def _open(self, window: int) -> None:
        accelerator = self.trainer.accelerator
        if self.window is None:
            answer_validation(self)
            follow_windows(self)
        elif not accelerator.sync_gradients:
            raise RampError(
                f"The step counter went from {self.window} to {window} inside an accumulation window.",
                why="the window's gradients would be lost or scaled wrongly",
                fix="report this with the upstream version: it counts optimizer steps in a way the ramp does not know",
            )
        steps = self.ramp.accumulation_steps(window)
        if steps != self.accumulation_steps:
            logger.debug("GH200 ramp adjusted gradient_accumulation_steps -> %d", steps)
        self.set_accumulation(steps)
        # Accelerate counts modulo the current value: without a restart the first window of a new size is cut short.
        accelerator.step = 0
        self.window = window

    def continue_ramp(self, record: Mapping[str, Any]) -> None:
        """A ramp in samples goes on from the checkpoint's, also where a micro-batch is another size now."""
        ramp = self.ramp
        if ramp.unit != SAMPLES or record["schedule"] != ramp.fingerprint():
            return
        continued = record["continued"]
        if record["samples_per_micro_batch"] != ramp.samples_per_micro_batch:
            continued = [record["global_step"], record["samples"]]
            logger.info(
                "GH200 ramp: a micro-batch had %d samples and has %d now; the ramp goes on after %d samples with an "
                "effective batch of %d.",
                record["samples_per_micro_batch"],
                ramp.samples_per_micro_batch,
                record["samples"],
                ramp.continued_at(*continued).effective_batch_size(record["global_step"]),
            )
        self.ramp = self.trainer.gh200_ramp_scheduler = ramp.continued_at(*continued)

    def tracker_values(self) -> dict[str, float]:
        steps = self.accumulation_steps
        values: dict[str, float] = {
            "gh200/gradient_accumulation_steps": steps,
            "gh200/effective_batch_size": steps * self.ramp.samples_per_micro_batch,
        }
        if self.lr_scaling in FOLLOWING:
            values["gh200/learning_rate_factor"] = self.lr_factor()
        return values

    def lr_factor(self) -> float:
        """What the learning rate is multiplied by in this window, where it is to follow the window."""
        ratio = self.accumulation_steps / self.ramp.target
        root = self.lr_scaling == "sqrt" or (self.lr_scaling == "follow" and self.trainer.config.lr_scale_sqrt)
        return ratio**0.5 if root else ratio


def build_ramp(trainer: Any, settings: Settings | None) -> GH200GradientRamp | None:
    """Called once the Accelerator exists and before the learning rate is scaled; None when no ramp is asked for.

    Also for a run without any GH200 settings: its checkpoint may have been made with a ramp.
    """
    if trainer.accelerator is None:
        return None
    asked = settings.optimizations if settings else None
    watch = ResumeWatch(trainer, accept_changes=bool(asked and asked.accept_changed_ramp))
    if asked is None or not asked.enable_batch_size_rampup:
        watch.begin(None)
        return None
    _refuse_where_inexact(trainer)
    ramp = ramp_from(asked, vars(trainer.config), trainer.accelerator.num_processes)
    needs_scale = asked.batch_rampup_lr_scaling in ("initial", "follow")
    control = RampControl(
        trainer, ramp, "target" if needs_scale and not trainer.config.lr_scale else asked.batch_rampup_lr_scaling
    )
    setattr(trainer, _CONTROL, control)
    watch.begin(control)
    TrainerAnswers(control).take_over(trainer)
    each_step(trainer.accelerator, lambda values: {**values, **control.tracker_values()})
    # Upstream scales the learning rate next, from this very value.
    control.set_accumulation(ramp.accumulation_steps(0) if control.lr_scaling == "initial" else ramp.target)
    if trainer.accelerator.is_main_process:
        show_debug_lines(logger)
        logger.info("GH200 gradient accumulation ramp enabled: %s", ramp.describe())
        for note in ramp.notes:
            logger.warning("GH200 ramp: %s", note)
    return ramp


_INEXACT: dict[str, tuple[Callable[[Any], bool], str]] = {
    "DeepSpeed": (
        lambda trainer: getattr(trainer.accelerator.distributed_type, "value", "") == "DEEPSPEED",
        "its engine keeps its own accumulation count and divides by it, so a change never reaches it",
    ),
    "optimizer_release_gradients": (
        lambda trainer: bool(getattr(trainer.config, "optimizer_release_gradients", False)),
        "the optimizer steps inside backward by a fixed `step % accumulation` rule that knows no windows",
    ),
    "ramtorch": (
        lambda trainer: bool(getattr(trainer.config, "ramtorch", False)),
        "upstream clears RamTorch gradients after every micro-batch, so nothing accumulates in a window",
    ),
}


def _refuse_where_inexact(trainer: Any) -> None:
    found = [f"{name}: {why}" for name, (used, why) in _INEXACT.items() if used(trainer)]
    if found:
        raise RampError(
            "The gradient accumulation ramp is refused in this run: its gradients would be wrong.",
            why="\n".join(found),
            fix="turn that off, or set gh200_optimizations.enable_batch_size_rampup to false",
        )


# What the patched Trainer calls. All of these do nothing when the ramp is off.


def begin_micro_batch(trainer: Any, step: int) -> None:
    """Right before `accelerator.accumulate`."""
    control = trainer.__dict__.get(_CONTROL)
    if control is not None:
        control.begin(step)


def first_micro_step(trainer: Any, step: int) -> int:
    """Where upstream's micro-step counter starts: at the checkpoint's own count, which seeds the choice of dataset."""
    control = trainer.__dict__.get(_CONTROL)
    return step if control is None else control.micro_step or step


def gate(trainer: Any, step: int, verdict: bool) -> bool:
    """Upstream's `step % accumulation == 0`; with windows of changing size the question is whether one just closed."""
    control = trainer.__dict__.get(_CONTROL)
    return verdict if control is None else bool(trainer.accelerator.sync_gradients)


def add_logs(trainer: Any, logs: MutableMapping[str, Any]) -> None:
    """The window in the progress bar's postfix."""
    control = trainer.__dict__.get(_CONTROL)
    if control is not None:
        logs["accum"] = control.accumulation_steps
        logs["eff_batch"] = trainer.config.total_batch_size
