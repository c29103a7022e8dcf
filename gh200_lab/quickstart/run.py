"""Trains the tiny model by the documented command in the built fork, watches it, and writes the report."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

from simpletuner.gh200.summary import loss_trend

from .. import process, stages
from ..machine import gpus
from ..place import ROOT, Place, find_place
from ..scenario import Failed
from ..tiny.config import MOVED, SHIPPED, UNWATCHED, Record
from ..tiny.images import make_images
from ..tiny.lab import forget
from ..tiny.launch import Launcher
from ..tiny.make import make_model
from ..tiny.run import read_log
from . import samples
from .report_page import Report, write_page

WORK = ROOT / MOVED
LIMIT = 24 * 3600.0
FULL = 16 << 20
PACKAGES = {"PyTorch": "torch", "Accelerate": "accelerate", "diffusers": "diffusers"}


def main() -> int:
    """Train and report; returns the exit code."""
    options = _options()
    process.end_well_when_asked_to()
    try:
        place = find_place()
    except FileNotFoundError as problem:
        what, fix = problem.args
        print(f"error: {what}\n  fix: {fix}", file=sys.stderr)
        return 2
    try:
        WORK.mkdir(parents=True, exist_ok=True)
        if not options.keep:
            forget(WORK)
        with _stage("model and data", options) as stage:
            make_model(WORK / "model")
            make_images(WORK / "images")
            stage.done("a tiny random SDXL, drawn images in four shapes")
        _reach_work_from_fork(place)
        return _train(place, options)
    except Failed as problem:
        print(f"error: {problem}\n  fix: run it again with -v; all of it is in {_shown(_log())}", file=sys.stderr)
        return 1
    except OSError as problem:
        print(f"error: {problem}\n  fix: {_fix('make it writable, or use another clone')}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _fix(usual: str) -> str:
    """A full disk speaks in many tongues, and seldom in its own."""
    full = shutil.disk_usage(ROOT / "build").free < FULL
    return "the disk that holds build/ is full: free some space and run it again" if full else usual


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--features", choices=tuple(SHIPPED), default="on")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("-v", "--verbose", action="store_true", default=bool(os.environ.get("GH200_VERBOSE")))
    return parser.parse_args()


def _log() -> Path:
    return Path(os.environ.get("GH200_LOG") or WORK / "quickstart.log")


def _stage(title: str, options: argparse.Namespace) -> stages.Stage:
    return stages.Stage(title, stages.Log(_log()), verbose=options.verbose)


def _train(place: Place, options: argparse.Namespace) -> int:
    log, launcher, config = WORK / "run.jsonl", Launcher(documented=True), Path(SHIPPED[options.features])
    log.unlink(missing_ok=True)
    settings: Record = json.loads((ROOT / config).read_text(encoding="utf-8"))
    total = options.steps or settings["max_train_steps"]
    command = launcher.command(Path(), config, *_more(options, place, total))
    variables = launcher.environment(place.fork, config, GH200_RUN_LOG=str(log))
    with _stage("training", options) as stage:

        def watch(group: int) -> None:
            stage.show(*_progress(log, total, stage.log))

        done = process.run(
            command,
            cwd=place.fork,
            environment=variables,
            log=_log(),
            limit=LIMIT,
            watch=watch,
            pause=stages.PAUSE,
            append=True,
        )
        stage.done(f"failed, exit code {done.code}" if done.code else f"{len(read_log(log)[0])} steps")
    if done.code:
        shown = [] if options.verbose else [f"  {line}" for line in stages.relevant_end(done.text)]
        message = [*shown, f"error: training ended with exit code {done.code}", f"  where: {_shown(_log())}"]
        print(*message, f"  fix: {_fix('see its last lines above')}", sep="\n", file=sys.stderr)
        return done.code
    return _finish(command, done.seconds, log, settings)


def _more(options: argparse.Namespace, place: Place, total: int) -> list[str]:
    more = [] if options.steps is None else [f"--max_train_steps={total}", f"--validation_step_interval={total}"]
    if not (place.fork / samples.TRACKER).is_file():
        # A release from before upstream's own tracker would reject its name.
        more += [f"--{name}={json.dumps(value).strip('"')}" for name, value in UNWATCHED.items()]
    return more


def _progress(log: Path, total: int, printed: stages.Log) -> tuple[float | None, str]:
    steps, _ = read_log(log)
    if not steps:
        said = re.findall(r"\[INFO\] (.*)", "\n".join(stages.plain(printed.tail())))
        return None, said[-1] if said else "loading"
    last = steps[-1]
    values = f"loss {last['loss']:.3f} lr {last['learning_rate']:.2g} batch {last['effective_batch_size']}"
    return last["step"] / total, f"{last['step']}/{total} {values}"


def _reach_work_from_fork(place: Place) -> None:
    """The configs name build/quickstart relative to the directory the command runs in."""
    seen = place.fork / MOVED
    if seen.resolve() != WORK.resolve():
        seen.parent.mkdir(parents=True, exist_ok=True)
        seen.unlink(missing_ok=True)
        seen.symlink_to(os.path.relpath(WORK, seen.parent))


def _finish(command: list[str], seconds: float, log: Path, settings: Record) -> int:
    weights, own = WORK / "output" / "pytorch_lora_weights.safetensors", WORK / "output" / samples.REPORT
    steps, end = read_log(log)
    if not steps or not weights.is_file():
        print(
            "error: training said it was done, but left no steps or no weights\n"
            f"  where: {log}, {weights}\n  fix: read {_shown(_log())}; run again without --keep",
            file=sys.stderr,
        )
        return 1
    images, upstream = _images(settings), own if own.is_file() else None
    notes = () if images else ("This upstream release leaves no validation images that could be compared.",)
    report = Report(steps, end, " ".join(command), seconds, _machine(), _shown(weights), images, upstream, notes)
    page = write_page(report, WORK / "report.html")
    samples_seen = sum(step["effective_batch_size"] for step in steps)
    first, last = loss_trend([step["loss"] for step in steps]) or (math.nan, math.nan)
    print(f"\n{len(steps)} steps, {samples_seen} samples, loss {first:.4f} -> {last:.4f}")
    for name, reason in (end.get("runtime") or {}).get("unavailable", {}).items():
        print(f"not possible on this machine: {name}: {reason}")
    made = {"weights": weights, "report": page, "all curves": upstream, "log": _log()}
    if images:
        sheet = samples.side_by_side(*images, WORK / "before_after.png")
        made = {"before": images[0], "after": images[1], "side by side": sheet, **made}
    for name, path in made.items():
        if path is not None:
            print(f"{name:<13} {_shown(path)}")
    return 0


def _images(settings: Record) -> tuple[Path, Path] | None:
    found = samples.before_and_after(WORK / "output")
    if found is None:
        return None
    wide, _, high = str(settings["validation_resolution"]).partition("x")
    resolution = int(wide), int(high or wide)
    before, after = (
        samples.without_caption(path, resolution, WORK / f"{name}.png")
        for name, path in zip(("before", "after"), found, strict=True)
    )
    return before, after


def _shown(path: Path) -> str:
    return stages.shown(path)


def _machine() -> dict[str, str]:
    device = gpus()[0] if gpus() else f"CPU, {os.cpu_count()} cores"
    facts = {"device": f"{device} ({platform.machine()})", "Python": platform.python_version()}
    return facts | {name: version(package) for name, package in PACKAGES.items()}


if __name__ == "__main__":
    sys.exit(main())
