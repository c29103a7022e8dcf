"""What the page's Validate and Run, and each changed field, report about our keys."""

from __future__ import annotations

import html
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config.blocks import loaded_values
from ..overrides import Overrides, override
from ..preflight.check import preflight
from ..preflight.settings_check import judge_config, judge_ramp
from ..preflight.startup import asked_for
from ..ramp.resume import ramp_problem
from .fields import keys
from .forms import problem_of_field, written
from .live import processes_of


class FieldChecks(Overrides):
    """A field that was changed is judged by the model of its block."""

    upstream_class = "ValidationService"
    feature = "the web UI"

    @override
    def validate_field(self, field_name: str, value: Any, **options: Any) -> tuple[bool, str | None]:
        if field_name not in keys():
            answer: tuple[bool, str | None] = self.upstream.validate_field(field_name, value, **options)
            return answer
        problem = problem_of_field(field_name, str(value))
        return problem is None, problem and html.escape(problem, quote=False)


def judged(result: Any, store: Any, config: Any) -> Any:
    """SimpleTuner's verdict on a form, and that of preflight; the page inserts the texts as HTML."""
    blocks, broken = written(config)
    errors, warnings = [f"{error.what}: {error.why}" for error in broken], []
    values = {} if broken else loaded_values(blocks)
    if asked_for(values):
        path = Path(store._get_config_path(store.get_active_config() or "default"))
        report = preflight(path, values, processes_of(values), keys=False, read=False)
        errors, warnings = [*report.problems, *_resume_problems(values)], report.warnings
    result.errors += [html.escape(text, quote=False) for text in errors]
    result.warnings += [html.escape(text, quote=False) for text in warnings]
    return result


def _resume_problems(values: Mapping[str, Any]) -> list[str]:
    """A ramp that the newest checkpoint was not made with would be rejected minutes after the start."""
    settings, _ = judge_config(values, os.environ)
    found = sorted(Path(str(values.get("output_dir") or "")).glob("checkpoint-*"), key=_checkpoint_number)
    if settings is None or settings.optimizations.accept_changed_ramp or not found:
        return []
    if values.get("resume_from_checkpoint", "latest") != "latest":
        return []
    problem = ramp_problem(found[-1], judge_ramp(settings, values, processes_of(values))[0])
    return [" ".join(problem.render().split())] if problem else []


def _checkpoint_number(path: Path) -> int:
    number = path.name.rpartition("-")[2]
    return int(number) if number.isdigit() else -1
