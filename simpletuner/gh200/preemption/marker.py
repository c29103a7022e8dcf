"""What a leaving run writes: the marker that a scheduler's script looks for, and the place of a checkpoint in its run."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..files import write_whole

MARKER = "gh200_left.json"
PLACE = "gh200_micro_step.json"


def mark(output_dir: Path, **values: Any) -> Path:
    """Launchers turn every exit code into 1, so this file says which end it was."""
    target = output_dir / MARKER
    _write(target, {**values, "time": datetime.now(UTC).isoformat(timespec="seconds")})
    return target


def unmark(output_dir: Path) -> None:
    (output_dir / MARKER).unlink(missing_ok=True)


def keep_place(checkpoint: Path, micro_step: int) -> None:
    _write(checkpoint / PLACE, {"micro_step": micro_step})


def place_in(checkpoint: Path) -> int | None:
    """How many micro-batches the run had counted; None where the checkpoint does not say."""
    try:
        place = json.loads((checkpoint / PLACE).read_text(encoding="utf-8"))["micro_step"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return place if isinstance(place, int) else None


def _write(target: Path, record: dict[str, Any]) -> None:
    write_whole(target, json.dumps(record, indent=1) + "\n")
