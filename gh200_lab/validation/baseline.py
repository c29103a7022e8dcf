"""Times a training run of the tiny model or of a job in the fork, stores the measurements, and compares them with earlier ones."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from simpletuner.gh200.config.blocks import loaded_config
from simpletuner.gh200.errors import GH200Error
from simpletuner.gh200.preflight.check import preflight
from simpletuner.gh200.preflight.report import PreflightError

from .. import machine, process
from ..place import Place, find_place
from ..scenario import Failed
from ..tiny.config import Record
from ..tiny.lab import Lab
from ..tiny.launch import Launcher
from ..tiny.run import Run
from .baseline_compare import BadBaseline, Comparison, compare, read_baseline
from .baseline_job import OwnJob
from .baseline_load import LoadWatch
from .baseline_record import diagnostic, make_record, page, versions, warm_up_steps
from .baseline_store import check_writable, store

ABOUT = """\
Trains the quick start's tiny model by the documented command and records throughput, step times, memory, versions,
machine and diagnostic: baseline.json for tools, baseline_report.txt for people, nvidia_smi.log where there is a GPU.

A new baseline moves the one before to OUTPUT/earlier/DATE. With --compare the new measurements go to
OUTPUT/compared/DATE and the baseline stays as it is. The verdict on time comes from an interval for the change of the time
per sample: worse if all of it is above +5 %, same or better if none of it is, otherwise inconclusive. GPU memory and RAM
have verdicts of their own, by their peaks and the same line. With --config the operator's own job is timed. Other work on the
machine widens it: for meaningful measurements, run nothing else on the machine.

exit codes: 0 done (same, better, inconclusive), 1 something is worse, or training failed, 2 nothing was run: the message says why"""
FEWEST = 20
STEPS = {True: 1000, False: 200}
TRACED_STEPS = 12
PROGRESS_SECONDS = 10.0
SMI = (
    "--query-gpu=timestamp,index,name,utilization.gpu,memory.used,power.draw,temperature.gpu",
    "--format=csv",
    "-l",
    "1",
)
GPU_MEMORY = 4


def main() -> int:
    """Capture or compare; returns the exit code."""
    options = arguments()
    try:
        old = read_baseline(options.compare) if options.compare else None
        place = find_place()
        if options.config is not None:
            check_job(options.config)
        output = (options.output or place.work.parents[1] / "baseline").absolute()
        check_writable(output)
    except BadBaseline as problem:
        return reject(str(problem), "name a directory that scripts/capture_baseline.sh wrote, or leave --compare out")
    except GH200Error as problem:
        return reject(problem.render(), "name a training config that can be started with --config FILE")
    except FileNotFoundError as problem:
        return reject(*map(str, problem.args))
    except OSError as problem:
        return reject(f"the results cannot be kept: {problem}", "name another directory with --output")
    try:
        return capture(place, options, output, old)
    except Failed as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1


def arguments() -> argparse.Namespace:
    """The parsed command line."""
    made = argparse.ArgumentParser(
        prog="scripts/capture_baseline.sh", description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument(
        "--steps", type=_steps, help=f"optimizer steps ({STEPS[True]} with a GPU, {STEPS[False]} without)"
    )
    made.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="time this training config, from this directory, instead of the tiny model",
    )
    made.add_argument("--output", type=Path, metavar="DIR", help="where the measurements go (baseline)")
    made.add_argument(
        "--compare", type=Path, metavar="OLD", help="compare with this baseline, a directory or its baseline.json"
    )
    made.add_argument(
        "--features",
        choices=("on", "off"),
        default="off",
        help="train with the fork's features, or as plain upstream (off)",
    )
    made.add_argument("--trace", action="store_true", help="also a torch profiler trace of a few steps; needs a GPU")
    made.add_argument("--keep", action="store_true", help="leave the files of the run where they are")
    return made.parse_args()


def check_job(path: Path) -> None:
    """Before anything is timed: a config that cannot work would only be found out after minutes."""
    report = preflight(path, loaded_config(path), say=lambda text: print(text, flush=True))
    if report.problems:
        raise PreflightError(report)


def _steps(text: str) -> int:
    if not text.isdecimal() or int(text) < FEWEST:
        raise argparse.ArgumentTypeError(
            f"{text!r}: a whole number of at least {FEWEST} is wanted, or nothing can be said"
        )
    return int(text)


def capture(place: Place, options: argparse.Namespace, output: Path, old: Record | None) -> int:
    """Train, then write or compare the record."""
    steps = options.steps or STEPS[bool(machine.gpus())]
    with place.directory("baseline", options.keep) as directory:
        lab, job = Lab(directory, place.fork), OwnJob(options.config, place, directory) if options.config else None
        if job is None:
            print(f"making the tiny model and its data in {os.path.relpath(lab.directory)}", flush=True)
            lab.make(per_aspect=6)
        made = lab.directory / "measurements"
        made.mkdir()
        with _gpu_log(made / "nvidia_smi.log") as smi:
            run, other_work = timed(job or lab, options.features, steps)
        record = make_record(run, options.features if job is None else "as in the config", other_work)
        record |= {"versions": versions(place.fork), "diagnostic": diagnostic(place, lab.directory)}
        record["config"] = job.label if job else None
        record["peak_gpu_bytes"] = _peak_gpu(made / "nvidia_smi.log")
        comparison = compare(old, record) if old else None
        if job is None:
            _trace(lab, options, made / "trace")
        (made / "baseline_report.txt").write_text(page(record, smi, comparison), encoding="utf-8")
        write_json(made / "baseline.json", record, comparison)
        target = store(made, output, compared=old is not None)
    print(f"\n{(target / 'baseline_report.txt').read_text(encoding='utf-8')}\nkept in {os.path.relpath(target)}")
    return 1 if comparison is not None and comparison.worse else 0


def timed(lab: Lab | OwnJob, features: str, steps: int) -> tuple[Run, float]:
    """The run, and the share of the machine others had while its counted steps were trained."""
    load, reported = LoadWatch(), [time.monotonic()]

    def watch(group: int) -> None:
        load.look(group)
        if time.monotonic() - reported[0] > PROGRESS_SECONDS:
            reported[0] = time.monotonic()
            print(f"  {lab.steps_so_far()} of {steps} steps", flush=True)

    if isinstance(lab, OwnJob):
        print(
            f"training {steps} steps of {lab.path}; its caches are made or used, its output directory is not touched",
            flush=True,
        )
        run = lab.train(steps, watch)
        times = [step["time"] for step in run.steps]
        return run, load.share_of_others(times[warm_up_steps(steps) - 1], times[-1])
    print(f"training {steps} steps, features {features}", flush=True)
    # A checkpoint in the middle of a step is no step time.
    config = lab.config(features, max_train_steps=steps, checkpoint_step_interval=steps + 1)
    run = lab.train("timed", config, launcher=Launcher(documented=True), limit=600 + 10.0 * steps, while_training=watch)
    times = [step["time"] for step in run.steps]
    return run, load.share_of_others(times[warm_up_steps(steps) - 1], times[-1])


@contextmanager
def _gpu_log(path: Path) -> Iterator[str]:
    """nvidia-smi once a second beside the run; yields what the page says about it."""
    if not machine.gpus():
        yield "absent: nvidia-smi finds no GPU on this machine"
        return
    with path.open("wb") as log, subprocess.Popen(["nvidia-smi", *SMI], stdout=log, stderr=subprocess.STDOUT) as logger:
        try:
            yield "one line a second and GPU"
        finally:
            logger.terminate()


def _peak_gpu(log: Path) -> int | None:
    """The most memory in use on one GPU; nvidia-smi counts in MiB."""
    if not log.is_file():
        return None
    rows = [line.split(",") for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    used = [row[GPU_MEMORY].split()[0] for row in rows if len(row) > GPU_MEMORY and row[GPU_MEMORY].strip()]
    return max((int(one) * 2**20 for one in used if one.isdecimal()), default=None)


def _trace(lab: Lab, options: argparse.Namespace, directory: Path) -> None:
    """A run of its own: a profiler would disturb the times."""
    if not options.trace:
        return
    if not machine.gpus():
        print("no trace: there is no GPU on this machine", file=sys.stderr)
        return
    print(f"tracing {TRACED_STEPS} steps", flush=True)
    config = lab.config(options.features, max_train_steps=TRACED_STEPS, checkpoint_step_interval=TRACED_STEPS + 1)
    lab.train("traced", config, variables={"SIMPLETUNER_TORCH_PROFILER_DIR": str(directory)})


def write_json(path: Path, record: Record, comparison: Comparison | None) -> None:
    """Write a record, with the comparison where there is one."""
    compared = {} if comparison is None else {"comparison": asdict(comparison)}
    path.write_text(json.dumps(record | compared, indent=1) + "\n", encoding="utf-8")


def reject(what: str, fix: str) -> int:
    """Print an error; returns exit code 2."""
    print(f"error: {what}\n  fix: {fix}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    process.end_well_when_asked_to()
    sys.exit(main())
