"""`python -m simpletuner.gh200.ramp CONFIG.json`: the schedule of a training config, window by window."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..errors import GH200Error, stop
from .from_config import ramp_from_config
from .schedule import GH200GradientRamp


def _table(ramp: GH200GradientRamp) -> str:
    rows = [
        f"{segment.window:>8} {segment.micro_batch * ramp.samples_per_micro_batch:>12} {segment.size:>8} "
        f"{segment.size * ramp.samples_per_micro_batch:>10}"
        for segment in ramp.segments
    ]
    notes = [f"note: {note}" for note in ramp.notes]
    return "\n".join([ramp.describe(), *notes, f"{'step':>8} {'samples':>12} {'accum':>8} {'batch':>10}", *rows])


def main() -> int:
    """Prints the schedule of the config on the command line."""
    parser = argparse.ArgumentParser(prog="python -m simpletuner.gh200.ramp", description=__doc__)
    parser.add_argument("config", type=Path, help="training config, JSON or TOML")
    parser.add_argument("--processes", type=int, default=1, help="number of processes the run will have (default 1)")
    given = parser.parse_args()
    try:
        print(_table(ramp_from_config(given.config, given.processes)))
    except GH200Error as error:
        stop(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
