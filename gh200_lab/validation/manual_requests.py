"""A validation and a checkpoint asked for through upstream's signal file while a run's ramp is still moving."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from ..place import Place
from ..scenario import Failed
from ..tiny.lab import Lab
from ..tiny.launch import Launcher
from ..tiny.run import Run, differing_losses

# Quadratic from 1 to 4 over 24 micro-batches: a longer ramp than elsewhere, so that the request falls inside it.
RAMP = {"initial_effective_batch_size": 1, "target_effective_batch_size": 4, "batch_rampup_steps": 24}
WINDOWS = [1] * 10 + [2] * 4 + [3] * 2 + [4] * 2
ASK_AFTER = 5
REQUEST = {"manual_validation": 1, "manual_checkpoint": 1}
NEVER = 1000
VALIDATION: dict[str, Any] = {
    "validation_disable": False,
    "validation_prompt": "a red disc",
    "validation_step_interval": NEVER,
    "validation_num_inference_steps": 1,
    "validation_resolution": "64x64",
    "validation_guidance": 1.0,
    "disable_benchmark": True,
    "checkpoint_step_interval": NEVER,
}


def manual_requests(place: Place, options: argparse.Namespace) -> str:
    """Asked by hand; then the same run, cold and in the same directory, where upstream's own schedule validates there.

    Upstream draws random numbers while it validates, so a run that never validates has other losses afterwards. A
    checkpoint draws none: the second run makes no checkpoint there.
    """
    with place.directory("manual", options.keep) as directory:
        lab, documented = Lab(directory, place.fork), Launcher(documented=True)
        lab.make()
        config = lab.config(max_train_steps=len(WINDOWS), **VALIDATION)
        config["gh200_optimizations"] |= RAMP
        asked = lab.train("asked", config, launcher=documented, while_training=lambda _: _ask(lab))
        checkpoint, validated = _checkpoint(asked), _validated(asked)
        scheduled = lab.train("scheduled", config | {"validation_step_interval": validated}, launcher=documented)
        # Its next validation is at twice that step; inside a larger window the two would not fall on one micro-batch.
        compared = min(2 * validated, len(WINDOWS)) if WINDOWS[validated] == 1 else validated
        _check(asked, scheduled, checkpoint, validated, compared)
        return (
            f"asked after step {ASK_AFTER}: validated at step {validated}, checkpoint-{checkpoint} loads, windows the "
            f"schedule's, {compared} losses equal to a run whose schedule validates at step {validated}"
        )


def _ask(lab: Lab) -> None:
    """Once, as an operator would: whole, by renaming, because the run may look at any moment."""
    if lab.steps_so_far() < ASK_AFTER or lab.signals.read_text(encoding="utf-8") != "{}":
        return
    new = lab.signals.with_suffix(".new")
    new.write_text(json.dumps(REQUEST), encoding="utf-8")
    os.replace(new, lab.signals)


def _validated(run: Run) -> int:
    """The one optimizer step with validation images."""
    images = (run.output / "validation_images").glob("step_*.png")
    steps = sorted({int(path.name.split("_")[1]) for path in images})
    if len(steps) != 1:
        raise Failed(f"one validation was asked for, there are images of steps {steps}")
    return steps[0]


def _checkpoint(run: Run) -> int:
    """The step of the one checkpoint, after everything a resume needs has been read from it."""
    import torch
    from safetensors.torch import load_file

    found = sorted(path for path in run.output.glob("checkpoint-*") if path.is_dir())
    if len(found) != 1:
        raise Failed(f"one checkpoint was asked for, there are {[path.name for path in found]}")
    directory = found[0]
    weights = load_file(directory / "pytorch_lora_weights.safetensors")
    if not weights or not all(bool(tensor.isfinite().all()) for tensor in weights.values()):
        raise Failed(f"{directory.name} has no usable weights")
    optimizer: Any = torch.load(directory / "optimizer.bin", map_location="cpu", weights_only=True)
    ramp = json.loads((directory / "gh200_ramp.json").read_text(encoding="utf-8"))
    step = int(directory.name.split("-")[1])
    if not optimizer.get("state") or ramp["place_in_window"] != 0:
        raise Failed(f"{directory.name}: no optimizer state, or saved inside a window: {ramp}")
    return step


def _check(asked: Run, scheduled: Run, checkpoint: int, validated: int, compared: int) -> None:
    moving = range(ASK_AFTER, WINDOWS.index(max(WINDOWS)) + 1)
    problems = [
        f"{name}: windows {run.windows()} instead of the schedule's {WINDOWS}"
        for name, run in (("asked", asked), ("scheduled", scheduled))
        if run.windows() != WINDOWS
    ]
    problems += [
        f"the {what} came at step {step}, outside the moving part of the ramp (steps {moving[0]} to {moving[-1]})"
        for what, step in (("checkpoint", checkpoint), ("validation", validated))
        if step not in moving
    ]
    differing = differing_losses(asked, scheduled, compared)
    if differing:
        problems.append(f"losses differ from those of the scheduled run at steps {differing}")
    if problems:
        raise Failed("; ".join(problems))
