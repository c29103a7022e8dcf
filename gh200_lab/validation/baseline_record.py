"""The record of a timed run: measurements, versions, machine; as JSON for tools and as a page for people."""

from __future__ import annotations

import itertools
import json
import platform
import re
import statistics
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .. import machine, process
from ..place import Place, environment
from ..tiny.run import Run
from .baseline_compare import FORMAT, Comparison

Record = dict[str, Any]
PACKAGES = ("torch", "accelerate", "diffusers", "transformers")
DIAGNOSTIC_LIMIT = 300.0


def warm_up_steps(steps: int) -> int:
    """The first steps pay for what is loaded and allocated once; they are trained and not counted."""
    return max(5, steps // 20)


def make_record(run: Run, features: str, other_work: float) -> Record:
    """The measurements of a run, after its warm-up."""
    times = [step["time"] for step in run.steps]
    first = warm_up_steps(len(run.steps))
    seconds = [after - before for before, after in itertools.pairwise(times)][first - 1 :]
    samples = [step["effective_batch_size"] for step in run.steps][first:]
    centiles = statistics.quantiles(seconds, n=100, method="inclusive")
    return {
        "format": FORMAT,
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "features": features,
        "steps": len(run.steps),
        "warm_up": first,
        "samples_per_second": sum(samples) / sum(seconds),
        "step_seconds": {"p50": centiles[49], "p90": centiles[89], "p99": centiles[98]},
        "peak_resident_bytes": max(step["resident_bytes"] for step in run.steps),
        "peak_gpu_bytes": None,
        "other_work": other_work,
        "load_average": machine.load_average(),
        "machine": machine.identity(),
        "seconds_per_sample": [took / many for took, many in zip(seconds, samples, strict=True)],
    }


def versions(fork: Path) -> dict[str, str]:
    """Versions of the packages and of the fork."""
    found = {
        "python": platform.python_version(),
        "upstream": _upstream(fork),
        "fork": _commit(fork),
        "driver": _driver(),
    }
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _upstream(fork: Path) -> str:
    text = (fork / "simpletuner" / "__init__.py").read_text(encoding="utf-8")
    version = re.search(r"""^__version__\s*=\s*["']([^"']+)""", text, re.MULTILINE)
    return version[1] if version else "unknown"


def _commit(fork: Path) -> str:
    done = subprocess.run(["git", "-C", str(fork), "rev-parse", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else "not in a git repository"


def _driver() -> str:
    done = machine.nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader")
    return done.stdout.splitlines()[0].strip() if done is not None and done.stdout.strip() else "none"


def diagnostic(place: Place, directory: Path) -> Record:
    """The fork's own diagnostic of this machine, or why there is none."""
    script, report = place.fork / "gh200_diagnostic.py", directory / "diagnostic.json"
    if not script.is_file():
        return {"absent": "this fork has no gh200_diagnostic.py"}
    done = process.run(
        [sys.executable, str(script), "--skip-allocation", "--quiet", "--output", str(report)],
        cwd=directory,
        environment=environment(place.fork),
        log=directory / "diagnostic.log",
        limit=DIAGNOSTIC_LIMIT,
    )
    if not report.is_file():
        return {"absent": f"it ended with exit code {done.code}: {done.complaint()}"}
    found: Record = json.loads(report.read_text(encoding="utf-8"))
    return found


def page(record: Record, smi: str, comparison: Comparison | None) -> str:
    """baseline_report.txt."""
    times, about, made = record["step_seconds"], record["machine"], record["versions"]
    gpu = record["peak_gpu_bytes"]
    lines = [
        f"Baseline of {record['created']}",
        "",
        f"job                  {record.get('config') or 'the tiny model'}",
        f"features             {record['features']}",
        f"steps                {record['steps']}, the first {record['warm_up']} not counted",
        f"samples per second   {record['samples_per_second']:.2f}",
        f"seconds per step     p50 {times['p50']:.4f}, p90 {times['p90']:.4f}, p99 {times['p99']:.4f}",
        f"peak memory          {record['peak_resident_bytes'] / 2**20:.0f} MiB resident",
        f"peak GPU memory      {'no GPU' if gpu is None else f'{gpu / 2**20:.0f} MiB in use on the device'}",
        f"work of others       {record['other_work']:.1%} of the machine; load average {record['load_average']:.2f}",
        f"machine              {about['cpu']}, {about['cpus']} CPUs, {about['ram_gib']} GiB, {about['architecture']}",
        f"GPUs                 {', '.join(about['gpus']) or 'none'}",
        *(f"{name:<20} {value}" for name, value in made.items()),
        f"nvidia_smi.log       {smi}",
        f"diagnostic           {_summary(record['diagnostic'])}",
    ]
    if comparison is not None:
        lines += [
            "",
            f"time: {comparison.sentence()}",
            *(part.sentence() for part in comparison.memory),
            *(f"warning: {warning}" for warning in comparison.warnings),
        ]
    return "\n".join(lines) + "\n"


def _summary(diagnostic: Record) -> str:
    if "summary" not in diagnostic:
        return str(diagnostic.get("absent", "in baseline.json"))
    counts = diagnostic["summary"]
    return (
        ", ".join(f"{count} {status}" for status, count in counts.items() if status != "exit_code") + " (baseline.json)"
    )
