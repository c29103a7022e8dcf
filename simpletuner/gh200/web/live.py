"""The page at /gh200: a run while it trains, by the telemetry of its ranks, and the ramp of the active config."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Depends
from fastapi.responses import FileResponse

from ..config.blocks import loaded_values
from ..preflight.settings_check import judge_config, judge_ramp
from ..telemetry.reader import NoTelemetry, read_directory
from .assets import ADDRESS, asset
from .saving import loaded

TEMPLATES = Path(__file__).with_name("templates")


def routes(training: Any) -> APIRouter:
    """`training` is upstream's module of routes: it knows who is logged in, and which config is the active one."""
    router = APIRouter(include_in_schema=False)
    login = [Depends(training.get_current_user)]

    def page() -> FileResponse:
        return FileResponse(TEMPLATES / "live.html")

    def measurements() -> dict[str, Any]:
        store = training.training_service.get_config_store()
        return live(loaded(store, store.get_active_config() or "default"))

    router.add_api_route(f"{ADDRESS}/{{path:path}}", asset)
    router.add_api_route("/gh200", page, dependencies=login)
    router.add_api_route("/gh200/live", measurements, dependencies=login)
    return router


def live(config: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The run is the newest in the output directory of the config."""
    values = loaded_values(config)
    result: dict[str, Any] = {"planned": planned_schedule(values, environ)}
    directory = values.get("output_dir")
    if not directory:
        return result | {"nothing": "This config has no output_dir yet."}
    if not Path(str(directory)).expanduser().is_dir():
        return result | {"nothing": f"{directory} has no run yet."}
    try:
        return result | read_directory(Path(str(directory)).expanduser()).as_json()
    except NoTelemetry as nothing:
        return result | {"nothing": nothing.what}


def planned_schedule(values: Mapping[str, Any], environ: Mapping[str, str]) -> list[tuple[int, int]] | None:
    """The ramp a run of this config would have on one process: optimizer steps, and the size from there on."""
    settings, _ = judge_config(values, environ)
    ramp, _ = judge_ramp(settings, values, processes_of(values))
    if ramp is None:
        return None
    return [(segment.window, ramp.effective_batch_size(segment.window)) for segment in ramp.segments]


def processes_of(values: Mapping[str, Any]) -> int:
    """The number of processes a config asks for."""
    text = str(values.get("num_processes") or "1")
    return max(1, int(text)) if text.isdigit() else 1
