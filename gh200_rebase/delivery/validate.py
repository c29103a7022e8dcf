"""Runs what proves a tree: a smoke test of the pristine upstream, and the validation scripts on the fork."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import Rejected
from ..project import Project

SCRIPTS = ("test_upstream_features.sh", "test_gh200_features.sh", "test_combined_features.sh")
_SMOKE = "import simpletuner.helpers.training.trainer as trainer; print(trainer.__file__)"


@dataclass(frozen=True)
class Outcome:
    """One command or check: how it ended, and its last lines."""

    name: str
    ok: bool
    verdict: str
    seconds: float
    tail: str = ""
    # One line per scenario of a validation script.
    shown: tuple[str, ...] = ()


def smoke(project: Project, tree: Path, what: str) -> Outcome:
    """The trainer of this tree imports, with everything it needs."""
    _require_full_environment()
    print(f"smoke test: importing the trainer of {what}", flush=True)
    environment = {**os.environ, "PYTHONPATH": str(tree.resolve()), "HF_HUB_OFFLINE": "1"}
    return _run(f"smoke test of {what}", [sys.executable, "-c", _SMOKE], project.build, environment)


def validate(project: Project, pristine: Path, fork: Path) -> list[Outcome]:
    """The fork's trainer imports, and every validation script this checkout has passes on it."""
    environment = {**os.environ, "GH200_FORK": str(fork.resolve()), "GH200_PRISTINE": str(pristine.resolve())}
    outcomes = [smoke(project, fork, "the fork")]
    for name in SCRIPTS:
        script = project.root / "scripts" / name
        if script.is_file():
            outcomes.append(_run_script(project, script, environment))
    return outcomes


def _run_script(project: Project, script: Path, environment: dict[str, str]) -> Outcome:
    print(f"validation: scripts/{script.name}", flush=True)
    report = project.build / "validation" / f"{script.stem}.json"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    command = ["bash", str(script), "--json", str(report)]
    outcome = _run(f"scripts/{script.name}", command, project.root, environment, show="  ")
    scenarios = json.loads(report.read_text(encoding="utf-8"))["scenarios"] if report.is_file() else []
    lines = tuple(f"{one['verdict']} {one['name']} ({one['seconds']:.0f} s): {one['what']}" for one in scenarios)
    return replace(outcome, shown=lines)


def _require_full_environment() -> None:
    probe = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    if subprocess.run([sys.executable, "-c", probe], check=False).returncode:
        raise Rejected(
            "Tests need the full environment",
            why=f"{sys.executable} has no torch",
            fix="run scripts/setup.sh, or build without tests: --skip-tests",
        )


def _run(name: str, command: list[str], where: Path, environment: dict[str, str], show: str | None = None) -> Outcome:
    """With `show`, the command's output is passed on as it comes, behind that margin."""
    where.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    output: deque[str] = deque(maxlen=60)
    with subprocess.Popen(
        command,
        cwd=where,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            output.append(line)
            if show is not None:
                print(f"{show}{line}", end="", flush=True)
    verdict = "passed" if process.returncode == 0 else f"failed with exit code {process.returncode}"
    return Outcome(name, process.returncode == 0, verdict, time.monotonic() - started, "".join(output)[-3000:])
