"""Trains the tiny model by the documented command in the built fork, watches it, and writes the report."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

from ..machine import gpus
from ..place import ROOT, Place, find_place
from ..scenario import Failed
from ..tiny.config import MOVED, SHIPPED
from ..tiny.lab import forget
from ..tiny.launch import Launcher
from ..tiny.make import make_model
from ..tiny.pictures import make_pictures
from ..tiny.run import read_log
from .report_page import Report, write_page

WORK = ROOT / MOVED
PACKAGES = {"PyTorch": "torch", "Accelerate": "accelerate", "diffusers": "diffusers"}


def main() -> int:
    options = _options()
    try:
        place = find_place()
    except FileNotFoundError as problem:
        what, fix = problem.args
        print(f"error: {what}\n  fix: {fix}", file=sys.stderr)
        return 2
    WORK.mkdir(parents=True, exist_ok=True)
    if not options.keep:
        forget(WORK)
    try:
        make_model(WORK / "model")
    except Failed as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    make_pictures(WORK / "images")
    _reach_work_from_fork(place)
    return _train(place, options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--features", choices=tuple(SHIPPED), default="on")
    parser.add_argument("--keep", action="store_true")
    return parser.parse_args()


def _train(place: Place, options: argparse.Namespace) -> int:
    log, launcher, config = WORK / "run.jsonl", Launcher(documented=True), Path(SHIPPED[options.features])
    log.unlink(missing_ok=True)
    more = [] if options.steps is None else [f"--max_train_steps={options.steps}"]
    command = launcher.command(Path(), config, *more)
    print(f"\nIn {os.path.relpath(place.fork)}:\n  {' '.join(command)}\n", flush=True)
    variables = launcher.environment(place.fork, config, GH200_RUN_LOG=str(log))
    started = time.monotonic()
    code = subprocess.run(command, cwd=place.fork, env=variables).returncode
    if code:
        print(f"error: training ended with exit code {code}; its messages are above", file=sys.stderr)
        return code
    return _finish(command, time.monotonic() - started, log)


def _reach_work_from_fork(place: Place) -> None:
    """The configs name build/quickstart relative to the folder the command runs in."""
    seen = place.fork / MOVED
    if seen.resolve() != WORK.resolve():
        seen.parent.mkdir(parents=True, exist_ok=True)
        seen.unlink(missing_ok=True)
        seen.symlink_to(os.path.relpath(WORK, seen.parent))


def _finish(command: list[str], seconds: float, log: Path) -> int:
    weights = WORK / "output" / "pytorch_lora_weights.safetensors"
    steps, end = read_log(log)
    if not steps or not weights.is_file():
        print(
            "error: training said it was done, but left no steps or no weights\n"
            f"  where: {log}, {weights}\n  fix: read the messages above; run again without --keep",
            file=sys.stderr,
        )
        return 1
    report = Report(steps, end, " ".join(command), seconds, _machine(), os.path.relpath(weights))
    page = write_page(report, WORK / "report.html")
    samples = sum(step["effective_batch_size"] for step in steps)
    print(
        f"\n{len(steps)} steps, {samples} samples, loss {steps[0]['loss']:.4f} -> {steps[-1]['loss']:.4f}, {seconds:.0f} s"
    )
    for name, reason in (end.get("runtime") or {}).get("unavailable", {}).items():
        print(f"not possible on this machine: {name}: {reason}")
    print(f"weights  {os.path.relpath(weights)}\nreport   {os.path.relpath(page)}")
    return 0


def _machine() -> dict[str, str]:
    device = gpus()[0] if gpus() else f"CPU, {os.cpu_count()} cores"
    told = {"device": f"{device} ({platform.machine()})", "Python": platform.python_version()}
    return told | {name: version(package) for name, package in PACKAGES.items()}


if __name__ == "__main__":
    sys.exit(main())
