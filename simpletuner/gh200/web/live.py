"""The page at /gh200: the newest job of the server, or the run of the active config, by the telemetry of its ranks."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.responses import FileResponse, HTMLResponse
from markupsafe import escape

from ..config.blocks import loaded_values
from ..preflight.check import preflight
from ..preflight.settings_check import judge_config, judge_ramp
from ..telemetry.reader import NoTelemetry, read_directory
from .assets import ADDRESS, asset
from .saving import loaded

SERVER = "simpletuner.simpletuner_sdk.server"
TEMPLATES = Path(__file__).with_name("templates")
_ENDS = {"completed": "Finished", "failed": "Failed", "cancelled": "Stopped by you"}
_RUNS = {"running": "Training", "ended": "Finished", "silent": "Stopped without a last record"}
_IMAGES = frozenset({".png", ".jpg", ".jpeg", ".webp"})
_MOST_IMAGES = 4
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
# Starlette's limit for a value of a form is 1 MB; inline datasets may be larger.
LARGEST_VALUE = 64 * 2**20


def routes(training: Any, environment: Any) -> APIRouter:
    """`training` is the server's module of routes: it knows who is logged in, and which config is the active one."""
    router = APIRouter(include_in_schema=False, dependencies=[Depends(training.get_current_user)])
    service = training.training_service

    def rendered(template: str, **values: Any) -> HTMLResponse:
        return HTMLResponse(environment.get_template(template).render(size=size, **values))

    def active() -> tuple[Path, dict[str, Any]]:
        store = service.get_config_store()
        name = store.get_active_config() or "default"
        return Path(store._get_config_path(name)), loaded_values(loaded(store, name))

    async def live() -> HTMLResponse:
        return rendered("gh200_live.html", **run_report(await newest_job(), active()[1], output_root(service)))

    def fit() -> HTMLResponse:
        path, values = active()
        report = preflight(path, values, processes_of(values), keys=False, read=False)
        return HTMLResponse(f"<pre>{escape(chr(10).join(report.lines()))}</pre>")

    async def preview(request: Request) -> HTMLResponse:
        values = loaded_values(
            service.build_config_bundle(await request.form(max_part_size=LARGEST_VALUE)).complete_config
        )
        schedule, problem = planned_schedule(values)
        return rendered("gh200_ramp.html", ramp=Drawing(schedule) if schedule else None, problem=problem)

    async def image(name: str) -> FileResponse:
        shown = run_report(await newest_job(), active()[1], output_root(service))["images"]
        if name not in {path.name for path in shown}:
            raise HTTPException(404)
        return FileResponse(next(path for path in shown if path.name == name))

    router.add_api_route("/gh200", lambda: rendered("gh200.html"))
    router.add_api_route("/gh200/live", live)
    router.add_api_route("/gh200/fit", fit)
    router.add_api_route("/gh200/images/{name}", image)
    router.add_api_route("/gh200/preview", preview, methods=["POST"])
    public = APIRouter(include_in_schema=False)
    public.add_api_route(f"{ADDRESS}/{{path:path}}", asset)
    public.include_router(router)
    return public


async def newest_job() -> Any:
    """The newest local job of the server's own list, which survives a restart of it; None without one."""
    jobs = import_module(f"{SERVER}.services.cloud.storage.job_repository").get_job_repository()
    return next((job for job in await jobs.list(limit=20) if job.provider == "local"), None)


def output_root(service: Any) -> str:
    """What a relative `output_dir` starts at."""
    state, defaults = service.get_webui_state()
    resolved = state.resolve_defaults(defaults)["resolved"] if state else {}
    return str(resolved.get("output_dir") or "")


def run_report(job: Any, config: Mapping[str, Any], root: str) -> dict[str, Any]:
    """What the page shows. A job that runs comes first; after its end, as long as its config is the active one."""
    own = _resolved(root, config.get("output_dir"))
    values = (job.metadata or {}).get("runtime_config") or {} if job else {}
    directory = _resolved(root, values.get("--output_dir") or values.get("output_dir"))
    if job is not None and job.status in _ENDS and directory != own:
        job = None
    if job is None:
        directory, values = own, config
    report: dict[str, Any] = {"directory": directory, "state": "No run yet", "since": None, "until": None, "error": ""}
    began = _time(job.started_at or job.created_at) if job else None
    telemetry = None
    try:
        telemetry = read_directory(directory) if directory and directory.is_dir() else None
    except NoTelemetry as nothing:
        report["nothing"] = nothing.what
    if telemetry and began and telemetry.first.latest.began < began.timestamp() - 1:
        telemetry = None  # of a run before this job
    latest = telemetry.first.latest if telemetry else None
    if telemetry and latest:
        report |= {"state": _RUNS[telemetry.state()], "since": datetime.fromtimestamp(latest.began, UTC)}
        report["until"] = None if telemetry.state() == "running" else datetime.fromtimestamp(latest.time, UTC)
    if job is not None:
        state = _ENDS.get(job.status) or ("Waiting for a GPU" if job.status != "running" else None)
        report |= {"state": state or ("Training" if telemetry else "Starting"), "since": began}
        report["until"] = _time(job.completed_at) if job.status in _ENDS else None
        report["error"] = _error(job) if job.status == "failed" else ""
    schedule = telemetry.first.schedule if telemetry else None
    schedule = schedule or planned_schedule(loaded_values(values))[0]
    report["ramp"] = Drawing(schedule, latest) if schedule else None
    report |= {"telemetry": telemetry, "latest": latest, "images": _newest_images(directory)}
    return report


def _resolved(root: str, directory: object) -> Path | None:
    """As the server resolves it for a job."""
    if not directory:
        return None
    service = import_module(f"{SERVER}.services.configs_service").ConfigsService
    return Path(service._resolve_under_base(root, str(directory)))


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _error(job: Any) -> str:
    """What the job printed of ours (what, where, why, fix), or else what the server says."""
    keeper = import_module("simpletuner.simpletuner_sdk.process_keeper")
    events = keeper.process_registry.get(job.job_id, {}).get("events", [])
    errors = [event.get("data") or {} for event in events if event.get("type") == "error"]
    for data in errors:
        lines = [_ANSI.sub("", str(line)) for line in data.get("recent_lines") or ()]
        fixes = [place for place, line in enumerate(lines) if line.startswith("  fix: ")]
        if fixes:
            what = max(place for place in range(fixes[-1]) if not lines[place].startswith("  "))
            return "\n".join(lines[what : fixes[-1] + 1])
    return next((str(data["message"]) for data in errors if data.get("message")), job.error_message or "")


def _newest_images(directory: Path | None) -> list[Path]:
    found = (directory / "validation_images").rglob("*") if directory else ()
    images = [path for path in found if path.suffix.lower() in _IMAGES]
    return sorted(images, key=lambda path: path.stat().st_mtime, reverse=True)[:_MOST_IMAGES]


class Drawing:
    """A ramp as a drawing of 640 by 120: its line, where the run is on it, and what stands at the axes."""

    def __init__(self, schedule: list[tuple[int, int]], record: Any = None) -> None:
        last = schedule[-1][0]
        self.step = record.step if record else None
        self.steps = max((record and record.total_steps) or last * 1.25, last, self.step or 0, 1)
        self.most = max(batch for _, batch in schedule)
        ends = [*(step for step, _ in schedule[1:]), self.steps]
        corners = [
            (x, batch)
            for (step, batch), end in zip(schedule, ends, strict=True)
            for x in (step, end)
            if x <= self.steps
        ]
        self.points = " ".join(f"{self._x(step):.1f},{self._y(batch):.1f}" for step, batch in corners)
        batch = next((size for step, size in reversed(schedule) if step <= (self.step or 0)), self.most)
        self.here = (self._x(self.step), self._y(batch)) if self.step is not None else None
        self.text = f"effective batch size from {schedule[0][1]} to {schedule[-1][1]} over {last} optimizer steps"

    def _x(self, step: float) -> float:
        return 40 + step / self.steps * 590

    def _y(self, batch: float) -> float:
        return 100 - batch / self.most * 84


def size(number: float | None) -> str:
    """Bytes for people."""
    number = number or 0
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{number / 1e6:.1f} MB"


def planned_schedule(
    values: Mapping[str, Any], environ: Mapping[str, str] = os.environ
) -> tuple[list[tuple[int, int]] | None, str]:
    """The ramp a run of this config would have: optimizer steps, and the size from there on; or what is wrong with it."""
    settings, problems = judge_config(values, environ)
    ramp, problem = judge_ramp(settings, values, processes_of(values))
    if ramp is None:
        return None, "; ".join((*problems, *([problem] if problem else [])))
    return [(segment.window, ramp.effective_batch_size(segment.window)) for segment in ramp.segments], ""


def processes_of(values: Mapping[str, Any]) -> int:
    """The number of processes a config asks for."""
    text = str(values.get("num_processes") or "1")
    return max(1, int(text)) if text.isdigit() else 1
