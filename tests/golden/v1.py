"""The checkpoint of v1 that is kept as test data: what made it, and how it is laid out anew."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "v1"
PLACEHOLDER = "@GOLDEN@"
# SimpleTuner's and the test's own words about the run; nothing is resumed from them.
LEFT_OUT = ("debug.log", "trace.jsonl")

RAMPED: dict[str, Any] = {
    "gh200_optimizations": {
        "enable_batch_size_rampup": True,
        "initial_effective_batch_size": 1,
        "target_effective_batch_size": 3,
        "batch_rampup_steps": 10,
        "telemetry_interval": 1,
    }
}
PREEMPTED: dict[str, Any] = {
    "gh200_optimizations": RAMPED["gh200_optimizations"] | {"checkpoint_on_signal": True},
}
RAMP_STEPS: dict[str, Any] = {"max_train_steps": 12, "checkpoint_step_interval": 8}
# Inside a window of two.
SIGNAL = {"name": "SIGTERM", "at": 7}


def keep(output: Path, place: Path) -> None:
    """The output directory of a preempted run, without the absolute path of its place."""
    shutil.rmtree(HERE, ignore_errors=True)
    _copy(output, HERE, str(place), PLACEHOLDER)
    for name in LEFT_OUT:
        (HERE / name).unlink(missing_ok=True)
    shutil.rmtree(HERE / "gh200_start", ignore_errors=True)


def lay_out(output: Path, place: Path) -> None:
    _copy(HERE, output, PLACEHOLDER, str(place))


def _copy(source: Path, target: Path, old: str, new: str) -> None:
    shutil.copytree(source, target)
    for path in target.rglob("*.json*"):
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(old, new), encoding="utf-8")
