"""What preflight says about a config; an interpreter without pydantic or Pillow cannot ask it, and the check says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

try:
    from ..preflight.check import preflight
except ImportError as error:
    UNASKED = f"{error.name} is not installed in this interpreter"
else:
    UNASKED = ""


@dataclass(frozen=True)
class Preflighted:
    """`unasked` says why nothing could be told."""

    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    not_checked: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    unasked: str = ""


def ask_preflight(
    path: Path, config: Mapping[str, object], processes: int, environ: Mapping[str, str], gpu_bytes: int
) -> Preflighted:
    if UNASKED:
        return Preflighted(unasked=UNASKED)
    report = preflight(path, config, processes, environ, gpu=lambda: gpu_bytes)
    told = tuple(f"{name}: {text}" for name, text in report.facts.get("told", {}).items())
    return Preflighted(tuple(report.problems), tuple(report.warnings), tuple(report.not_checked), told)
