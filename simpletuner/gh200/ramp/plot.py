"""`python -m simpletuner.gh200.ramp [--plot out.png] CONFIG.json`: a training config's schedule, told and drawn."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from ..errors import GH200Error, stop
from ..settings.blocks import loaded_config
from ..settings.sources import read_config_settings
from .reader import ramp_from
from .schedule import GH200GradientRamp, RampError

MOST_POINTS = 5000


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


def draw(ramp: GH200GradientRamp, picture: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RampError("The plot needs matplotlib.", fix="install matplotlib, or leave --plot out") from error
    last = ramp.segments[-1].window + max(3, ramp.segments[-1].window // 8)
    steps = range(0, last + 1, last // MOST_POINTS + 1)
    samples = [ramp.micro_batches_for(step) * ramp.samples_per_micro_batch for step in steps]
    sizes = [ramp.effective_batch_size(step) for step in steps]
    figure = Figure(figsize=(9, 6), layout="constrained")
    batch, windows = figure.subplots(2, 1, sharex=True)
    batch.step(samples, sizes, where="post")
    batch.vlines(samples, 0, sizes, linewidth=0.4, alpha=0.4)
    batch.set(ylabel="effective batch size", title=ramp.describe(), ylim=(0, None))
    windows.plot(samples, steps)
    windows.set(xlabel="samples", ylabel="optimizer steps (windows)", ylim=(0, None))
    figure.savefig(picture, dpi=120)


def tell(ramp: GH200GradientRamp) -> str:
    rows = [
        f"{segment.window:>8} {segment.micro_batch * ramp.samples_per_micro_batch:>12} {segment.size:>8} "
        f"{segment.size * ramp.samples_per_micro_batch:>10}"
        for segment in ramp.segments
    ]
    notes = [f"note: {note}" for note in ramp.notes]
    return "\n".join([ramp.describe(), *notes, f"{'step':>8} {'samples':>12} {'accum':>8} {'batch':>10}", *rows])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m simpletuner.gh200.ramp", description=__doc__)
    parser.add_argument("config", type=Path, help="training config, JSON or TOML")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw effective batch and windows over samples")
    parser.add_argument("--processes", type=int, default=1, help="number of processes the run will have (default 1)")
    given = parser.parse_args()
    try:
        ramp = ramp_from_config(given.config, given.processes)
        print(tell(ramp))
        if given.plot:
            draw(ramp, given.plot)
    except GH200Error as error:
        stop(error)
    return 0
