"""Files of a preempted run: the marker for the scheduler's script, and the micro-batch counter of a checkpoint."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..files import write_whole

MARKER = "gh200_left.json"
MICRO_STEP = "gh200_micro_step.json"


def write_marker(output_dir: Path, **values: Any) -> Path:
    """Write the marker of a preempted run: launchers turn every exit code into 1."""
    target = output_dir / MARKER
    _write(target, {**values, "time": datetime.now(UTC).isoformat(timespec="seconds")})
    return target


def remove_marker(output_dir: Path) -> None:
    """Remove the marker of an earlier run."""
    (output_dir / MARKER).unlink(missing_ok=True)


def save_micro_step(checkpoint: Path, micro_step: int) -> None:
    """Write the micro-batch counter into a checkpoint."""
    _write(checkpoint / MICRO_STEP, {"micro_step": micro_step})


def saved_micro_step(checkpoint: Path) -> int | None:
    """The micro-batch counter of a checkpoint; None where it has none."""
    try:
        micro_step = json.loads((checkpoint / MICRO_STEP).read_text(encoding="utf-8"))["micro_step"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return micro_step if isinstance(micro_step, int) else None


def _write(target: Path, record: dict[str, Any]) -> None:
    write_whole(target, json.dumps(record, indent=1) + "\n")
