"""The accumulation schedule of a training config, window by window."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ..errors import GH200Error
from ..ramp.from_config import ramp_from_config
from ..ramp.schedule import GH200GradientRamp
from .check import above_zero


def _table(ramp: GH200GradientRamp) -> str:
    rows = [
        f"{segment.window:>8} {segment.micro_batch * ramp.samples_per_micro_batch:>12} {segment.size:>8} "
        f"{segment.size * ramp.samples_per_micro_batch:>10}"
        for segment in ramp.segments
    ]
    notes = [f"note: {note}" for note in ramp.notes]
    return "\n".join([ramp.describe(), *notes, f"{'step':>8} {'samples':>12} {'accum':>8} {'batch':>10}", *rows])


def parser() -> argparse.ArgumentParser:
    """The command line of `ramp`."""
    made = argparse.ArgumentParser(prog="simpletuner gh200 ramp", description=__doc__)
    made.add_argument("config", type=Path, help="training config, JSON or TOML")
    made.add_argument("--processes", type=above_zero, default=1, help="processes of the run (default 1)")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the schedule; returns the exit code."""
    given = parser().parse_args(arguments)
    try:
        print(_table(ramp_from_config(given.config, given.processes)))
    except GH200Error as error:
        print(error.render(), file=sys.stderr)
        return 2
    return 0
