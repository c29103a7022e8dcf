"""Keeps the ramp in every checkpoint, restores it, and notices when it changed between two runs."""

from __future__ import annotations

import json
import logging
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files import write_whole
from ..overrides import Overrides, override
from ..runtime import current
from .checkpoints import complete_before, record_last_file
from .messages import FEATURE
from .noise import SmoothedNoise
from .noise_schedule import Growth
from .schedule import MEASURED, RampError

if TYPE_CHECKING:
    from .apply import RampControl
    from .schedule import GH200GradientRamp

logger = logging.getLogger("gh200.ramp")
RECORD = "gh200_ramp.json"


class RampResumeOverrides(Overrides):
    """Writes `gh200_ramp.json` beside a checkpoint's other files and compares it when one is loaded."""

    upstream_class = "Trainer"
    feature, rejection = FEATURE, RampError

    def __init__(self, trainer: Any, *, accept_changes: bool, asked: bool = True) -> None:
        super().__init__()
        self.trainer, self.accept_changes, self.asked = trainer, accept_changes, asked
        self.control: RampControl | None = None
        self.loaded_from: Path | None = None
        self.record: dict[str, Any] | None = None
        self.unreadable = ""

    def begin(self, control: RampControl | None) -> None:
        """Also without a ramp: a checkpoint made with one must not be continued silently without it."""
        self.control = control
        accelerator = self.trainer.accelerator
        if control is not None or self.asked:
            accelerator.register_save_state_pre_hook(self._save)
        accelerator.register_load_state_pre_hook(self._load)
        self.install(self.trainer)

    def _save(self, models: Any, weights: Any, output_dir: str) -> None:
        control, accelerator = self.control, self.trainer.accelerator
        if not accelerator.is_local_main_process:
            return
        record_last_file(Path(output_dir))
        if control is not None:
            self._save_ramp(control, Path(output_dir))

    def _save_ramp(self, control: RampControl, checkpoint: Path) -> None:
        accelerator = self.trainer.accelerator
        record = {
            "schedule": control.ramp.fingerprint(),
            "global_step": self.trainer.state["global_step"],
            "micro_step": self.trainer._gh200_step,
            "place_in_window": 0 if accelerator.sync_gradients else accelerator.step,
            "gradient_accumulation_steps": control.accumulation_steps,
            "samples": control.ramp.samples_for(self.trainer.state["global_step"]),
            "samples_per_micro_batch": control.ramp.samples_per_micro_batch,
            "continued": list(control.ramp.continued),
            "sizes": list(control.ramp.sizes),
        }
        if control.meter is not None:
            record["noise"] = asdict(control.meter.noise)
        if control.ramp.shape == MEASURED:
            record["decisions"] = [asdict(decision) for decision in control.decisions]
        write_whole(checkpoint / RECORD, json.dumps(record, indent=1) + "\n")

    def _load(self, models: Any, input_dir: str) -> None:
        # Never raises: upstream may answer an exception in here by deleting the checkpoint.
        self.loaded_from, self.record, self.unreadable = Path(input_dir), None, ""
        try:
            self.record = _read(self.loaded_from / RECORD)
        except (OSError, ValueError) as error:
            self.unreadable = str(error)
        if self.record and self.control:
            # Caption samplers compare this with what it was when the checkpoint was made.
            self.control.set_accumulation(self.record["gradient_accumulation_steps"])

    @override
    def checkpoint_state_latest(self, output_dir: str) -> str | None:
        """Upstream takes the newest directory by its name, also one that a kill left half written."""
        latest: str | None = self.upstream.checkpoint_state_latest(output_dir)
        if latest is None or getattr(self.trainer.config, "delete_invalid_checkpoints", False):
            # With that key upstream tries, deletes and goes on by itself.
            return latest
        found, passed = complete_before(Path(output_dir), latest)
        for name, reason in passed.items():
            logger.warning("GH200: checkpoint %s is incomplete (%s) and is passed over.", name, reason)
        if passed:
            logger.warning("GH200: resuming from %s.", found or "no checkpoint: the run starts anew")
        return found

    @override
    def init_resume_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        run = current()
        with run.resuming() if run is not None else nullcontext():
            result = self.upstream.init_resume_checkpoint(*args, **kwargs)
        if self.loaded_from is None:
            return result
        problem = self._problem()
        if problem is not None and not self.accept_changes:
            self.trainer._end_gh200(problem)
        if problem is not None:
            logger.warning("%s Continuing, because accept_changed_ramp is set.", problem.what)
        self._continue()
        return result

    def _problem(self) -> RampError | None:
        now = self.control.ramp.fingerprint() if self.control is not None else None
        return changed_ramp(self.record, now, f"{self.loaded_from}", self.unreadable)

    def _continue(self) -> None:
        if self.control is None or self.record is None:
            return
        self.control.resumed_at = self.record["micro_step"]
        self.control.continue_ramp(self.record)
        self.control.continue_measured(self.record)
        place, step = self.record["place_in_window"], self.trainer.state["global_step"]
        if place:
            logger.info(
                "GH200 ramp: the checkpoint lies inside window %d; the window starts again, without the %d micro-batches"
                " that were in it.",
                step,
                place,
            )
        if getattr(self.trainer.config, "dataloader_prefetch", False):
            logger.warning(
                "GH200 ramp: dataloader_prefetch had fetched batches ahead of the checkpoint; they are not fetched again,"
                " so this resume does not repeat the uninterrupted run exactly."
            )


def ramp_problem(checkpoint: Path, ramp: GH200GradientRamp | None) -> RampError | None:
    """What a resume of this checkpoint with this ramp would be rejected for, before anything is loaded."""
    record, unreadable = None, ""
    try:
        record = _read(checkpoint / RECORD)
    except (OSError, ValueError) as error:
        unreadable = str(error)
    now = ramp.fingerprint() if ramp is not None else None
    return changed_ramp(record, now, str(checkpoint), unreadable)


def changed_ramp(
    record: dict[str, Any] | None, now: dict[str, Any] | None, where: str, unreadable: str
) -> RampError | None:
    """The difference between the ramp that a checkpoint was made with and the present one."""
    then = record and record["schedule"]
    if then == now and not unreadable:
        return None
    differences = [
        f"{key}: {(then or {}).get(key, 'no ramp')} in the checkpoint, {(now or {}).get(key, 'no ramp')} now"
        for key in (now or then or {})
        if (then or {}).get(key) != (now or {}).get(key)
    ]
    return RampError(
        "The gradient accumulation ramp changed since the checkpoint was made.",
        where=where + (f" ({RECORD} cannot be read: {unreadable})" if unreadable else ""),
        why="\n".join(differences),
        fix="resume with the old settings, or set gh200_optimizations.accept_changed_ramp to true: the run then "
        "goes on with the window the new ramp has for this step",
    )


def _read(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    record = json.loads(path.read_text(encoding="utf-8"))
    numbers = ("global_step", "micro_step", "place_in_window", "gradient_accumulation_steps")
    if not isinstance(record, dict) or not isinstance(record.get("schedule"), dict):
        raise ValueError("it is not a ramp record")
    if not all(isinstance(record.get(key), int) for key in numbers):
        raise ValueError(f"one of {', '.join(numbers)} is missing")
    if record["schedule"].get("shape") == MEASURED:
        _check_measured(record)
    return record


def _check_measured(record: dict[str, Any]) -> None:
    """A measured ramp without what it has measured and decided would be another one, without a word."""
    try:
        SmoothedNoise.from_record(record["noise"])
        for decision in record["decisions"]:
            Growth.from_record(decision)
    except (KeyError, TypeError) as error:
        raise ValueError(f"what was measured or decided is not there: {error}") from error
