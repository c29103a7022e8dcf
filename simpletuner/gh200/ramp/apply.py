"""Puts the ramp into a Trainer: checks it can be exact there and opens each window."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import broadcast

from ..console import show_debug_lines, show_in_bar
from ..state import StateHooks
from ..trackers import each_step
from .from_config import ramp_from
from .lr import FOLLOWING, follow_windows
from .noise import SmoothedNoise
from .noise_meter import NoiseMeter
from .noise_schedule import Growth, growth
from .overrides import EpochCounts, RampTrainerOverrides, override_validation
from .rejections import reject_where_inexact, reject_where_unmeasured
from .resume import RampResumeOverrides
from .schedule import MEASURED, GH200GradientRamp, RampError
from .windows import SAMPLES

if TYPE_CHECKING:
    from ..config.schema import Settings

logger = logging.getLogger("gh200.ramp")


class RampControl:
    """The ramp of one Trainer. The window is the optimizer step, so the training state alone says where it is."""

    def __init__(
        self, trainer: Any, ramp: GH200GradientRamp, lr_scaling: str, *, beta2_in_samples: bool = False
    ) -> None:
        self.trainer, self.ramp, self.lr_scaling = trainer, ramp, lr_scaling
        self.beta2_in_samples = beta2_in_samples
        self.meter: NoiseMeter | None = None
        self.decisions: tuple[Growth, ...] = ()
        self.counts = EpochCounts(self)
        self.window: int | None = None
        self.resumed_at: int | None = None

    @property
    def accumulation_steps(self) -> int:
        """Micro-batches in the current window."""
        return int(self.trainer.config.gradient_accumulation_steps)

    def set_accumulation(self, steps: int) -> None:
        """Config and Accelerator always agree; anything else scales a gradient wrongly."""
        self.trainer.config.gradient_accumulation_steps = steps
        self.trainer.config.total_batch_size = steps * self.ramp.samples_per_micro_batch
        self.trainer.accelerator.gradient_accumulation_steps = steps

    def begin(self) -> None:
        """Before a micro-batch: open the window of the coming optimizer step if it is not open yet."""
        window = self.trainer.state["global_step"]
        if window != self.window:
            self.open(window)
        self.counts.note_epoch_step(window)
        show_in_bar(accum=self.accumulation_steps, eff_batch=self.trainer.config.total_batch_size)

    def first_micro_step(self, step: int) -> int:
        """Where upstream's micro-step counter starts: at the checkpoint's own count, which seeds the choice of dataset."""
        return step if self.resumed_at is None else self.resumed_at

    def open(self, window: int) -> None:
        """The window of this optimizer step, in config and Accelerator."""
        accelerator = self.trainer.accelerator
        if self.window is None:
            override_validation(self)
            follow_windows(self)
        elif not accelerator.sync_gradients:
            raise RampError(
                f"The step counter went from {self.window} to {window} inside an accumulation window.",
                why="the window's gradients would be lost or scaled wrongly",
                fix="report this with the upstream version: it counts optimizer steps in a way the ramp does not know",
            )
        if self.ramp.shape == MEASURED:
            self._decide(window)
        steps = self.ramp.accumulation_steps(window)
        if steps != self.accumulation_steps:
            logger.debug("GH200 ramp adjusted gradient_accumulation_steps -> %d", steps)
        self.set_accumulation(steps)
        # Accelerate counts modulo the current value: without a restart the first window of a new size is cut short.
        accelerator.step = 0
        self.window = window

    def _decide(self, window: int) -> None:
        """Whether this window is larger than the last one. The first rank decides for all."""
        decision = growth(self.ramp, window, self.meter.noise) if self.meter is not None else None
        effective = decision.effective_batch_size if decision is not None else 0
        accelerator = self.trainer.accelerator
        if accelerator.num_processes > 1:
            agreed = torch.tensor([effective], device=accelerator.device)
            if int(broadcast(agreed).item()) != effective:
                raise RampError(
                    f"The ranks do not agree on window {window}.",
                    why=f"the first rank would have an effective batch of {int(agreed.item())}, this one {effective}",
                    fix="report this with the kinds of machines the run has: each must come to the same sums",
                )
        if decision is not None:
            self._take((*self.decisions, decision))
            if accelerator.is_main_process:
                text = "GH200 ramp: effective batch %d -> %d from step %d on: %s"
                logger.info(text, decision.before, effective, window, decision.reason)

    def _take(self, decisions: tuple[Growth, ...]) -> None:
        self.decisions = decisions
        grown = tuple((one.window, one.effective_batch_size) for one in decisions)
        self.ramp = self.trainer.gh200_ramp_scheduler = replace(self.ramp, grown=grown)

    def continue_measured(self, record: Mapping[str, Any]) -> None:
        """What was measured and decided before the checkpoint, and nothing of what came after it."""
        if self.meter is not None and "noise" in record:
            self.meter.noise = SmoothedNoise.from_record(record["noise"])
        if self.ramp.shape == MEASURED:
            self._take(tuple(map(Growth.from_record, record.get("decisions", ()))))

    def continue_ramp(self, record: Mapping[str, Any]) -> None:
        """A ramp in samples goes on from the checkpoint's, also where a micro-batch is another size now."""
        ramp = self.ramp
        if ramp.unit != SAMPLES or record["schedule"] != ramp.fingerprint():
            return
        window, samples = record["continued"]
        # What it had by default it keeps: one micro-batch may be another size now.
        first, last = record["sizes"]
        kept = (0 if ramp.initial_effective_batch_size else first, 0 if ramp.target_effective_batch_size else last)
        if record["samples_per_micro_batch"] != ramp.samples_per_micro_batch:
            window, samples = record["global_step"], record["samples"]
            logger.info(
                "GH200 ramp: a micro-batch had %d samples and has %d now; the ramp goes on after %d samples with an "
                "effective batch of %d.",
                record["samples_per_micro_batch"],
                ramp.samples_per_micro_batch,
                record["samples"],
                ramp.continued_at(window, samples, kept).effective_batch_size(record["global_step"]),
            )
        self.ramp = self.trainer.gh200_ramp_scheduler = ramp.continued_at(window, samples, kept)

    def tracker_values(self) -> dict[str, float]:
        """The window's sizes and factors, for trackers."""
        steps = self.accumulation_steps
        values: dict[str, float] = {
            "gh200/gradient_accumulation_steps": steps,
            "gh200/effective_batch_size": steps * self.ramp.samples_per_micro_batch,
        }
        if self.lr_scaling in FOLLOWING:
            values["gh200/learning_rate_factor"] = self.lr_factor()
        if self.beta2_in_samples:
            values["gh200/beta2_power"] = self.beta2_power()
        return values

    def lr_factor(self) -> float:
        """What the learning rate is multiplied by in this window, where it is to follow the window."""
        ratio = self.accumulation_steps / self.ramp.target
        root = self.lr_scaling == "sqrt" or (self.lr_scaling == "follow" and self.trainer.config.lr_scale_sqrt)
        return ratio**0.5 if root else ratio

    def beta2_power(self) -> float:
        """What beta2 is raised to in this window, so that it forgets by samples and not by steps."""
        return self.accumulation_steps / self.ramp.accumulation_steps(0)


def build_ramp(trainer: Any, settings: Settings | None) -> GH200GradientRamp | None:
    """Called once the Accelerator exists and before the learning rate is scaled; None when no ramp is asked for.

    Also for a run without any GH200 settings: its checkpoint may have been made with a ramp.
    """
    asked = settings.optimizations if settings else None
    accept_changes = bool(asked and asked.accept_changed_ramp)
    watch = RampResumeOverrides(trainer, accept_changes=accept_changes, asked=asked is not None)
    meter = _meter(trainer) if asked is not None and asked.measure_gradient_noise_scale else None
    if asked is None or not asked.enable_batch_size_rampup:
        watch.begin(None)
        return None
    reject_where_inexact(trainer)
    ramp = ramp_from(asked, vars(trainer.config), trainer.accelerator.num_processes)
    needs_scale = asked.batch_rampup_lr_scaling in ("initial", "follow")
    control = RampControl(
        trainer,
        ramp,
        "target" if needs_scale and not trainer.config.lr_scale else asked.batch_rampup_lr_scaling,
        beta2_in_samples=asked.batch_rampup_beta2 == "samples",
    )
    control.meter = meter
    trainer._gh200_ramp = control
    watch.begin(control)
    RampTrainerOverrides(control).install(trainer)
    each_step(trainer.accelerator, lambda values: {**values, **control.tracker_values()})
    # Upstream scales the learning rate next, from this very value.
    control.set_accumulation(ramp.accumulation_steps(0) if control.lr_scaling == "initial" else ramp.target)
    if trainer.accelerator.is_main_process:
        show_debug_lines(logger)
        logger.info("GH200 gradient accumulation ramp enabled: %s", ramp.describe())
        for note in ramp.notes:
            logger.warning("GH200 ramp: %s", note)
        if asked.batch_rampup_lr_scaling != control.lr_scaling:
            logger.warning(
                "GH200 ramp: batch_rampup_lr_scaling %s has no effect without lr_scale: the learning rate stays as given.",
                asked.batch_rampup_lr_scaling,
            )
        _warn_of_gradient_precision(trainer)
    return ramp


def _warn_of_gradient_precision(trainer: Any) -> None:
    asked = StateHooks.get_raw_config().get("gradient_precision")
    if asked == "fp32" and getattr(trainer.config, "gradient_precision", asked) != asked:
        logger.warning(
            "GH200 ramp: gradient_precision fp32 has no effect, upstream has set it back: with bf16 weights the sum of a "
            "window is rounded to bf16."
        )


def _meter(trainer: Any) -> NoiseMeter:
    reject_where_unmeasured(trainer)
    meter = trainer._gh200_noise = NoiseMeter(trainer)
    each_step(trainer.accelerator, lambda values: {**values, **meter.tracker_values()})
    return meter
