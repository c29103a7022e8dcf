"""What our tab shows of a run while it trains: its telemetry as its ranks wrote it, and the ramp of the config."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..preflight.judging import judge_config, judge_ramp
from ..settings.blocks import loaded_values
from ..telemetry.reader import NoTelemetry, read_folder


def live(config: Mapping[str, Any] | None, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """`config` is the one the page shows; the run is the newest in its output folder."""
    values = loaded_values(config or {})
    told: dict[str, Any] = {"planned": planned_schedule(values, environ)}
    folder = values.get("output_dir")
    if not folder:
        return told | {"nothing": "This config has no output_dir yet."}
    if not Path(str(folder)).expanduser().is_dir():
        return told | {"nothing": f"{folder} has no run yet."}
    try:
        return told | read_folder(Path(str(folder)).expanduser()).as_json()
    except NoTelemetry as nothing:
        return told | {"nothing": nothing.what}


def planned_schedule(values: Mapping[str, Any], environ: Mapping[str, str]) -> list[tuple[int, int]] | None:
    """The ramp a run of this config would have on one process: optimizer steps, and the size from there on."""
    settings, _ = judge_config(values, environ)
    ramp, _ = judge_ramp(settings, values, processes_of(values))
    if ramp is None:
        return None
    return [(segment.window, ramp.effective_batch_size(segment.window)) for segment in ramp.segments]


def processes_of(values: Mapping[str, Any]) -> int:
    text = str(values.get("num_processes") or "1")
    return max(1, int(text)) if text.isdigit() else 1
