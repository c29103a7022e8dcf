"""From a directory of images to a job that trains: looks at images, model and machine, and writes jobs/NAME/config.json."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..config.blocks import loaded_values
from ..diagnostic.gpu import read_gpus
from ..diagnostic.machine import Machine
from ..errors import GH200Error
from ..memory.limits import format_size
from ..new_job.captions import with_captions
from ..new_job.contact_sheet import contact_sheet
from ..new_job.decisions import Job, JobOptions, TargetMachine, choose
from ..new_job.images import ImageDirectory, left_out_lines, look_at, reject_most_left_out
from ..new_job.model import choose_model
from ..new_job.write import JOBS, NameTaken, free_name, needs_links, write_job
from ..preflight.check import preflight
from ..preflight.report import many, some
from ..preflight.upstream_keys import Upstream, upstream_record
from .check import above_zero

LEAST_EDGE, MOST_EDGE = 64, 8192
_EXAMPLES = """\
examples:
  simpletuner gh200 new-job ~/images/cat --model models/sdxl-base            a job named cat, and the line that starts it
  simpletuner gh200 new-job ~/images/cat --model OWNER/NAME --family flux    a model of the hub, downloaded at the start
  simpletuner gh200 new-job ~/images/cat --steps 2000 --prompt "a cat on a roof"

Captions are .txt or .caption files beside the images, or one table in the directory: a parquet, metadata.jsonl
or metadata.csv (file_name, caption). Without any, --caption or the directory's name is used for all. Nothing in the directory is changed. Everything chosen is a key of the written file:
change it there, and check it with simpletuner gh200 check. Takes seconds.

exit code: 0 the job can be started, 2 it cannot be made: the message says why
"""


def parser() -> argparse.ArgumentParser:
    """The command line of `new-job`."""
    made = argparse.ArgumentParser(
        prog="simpletuner gh200 new-job", description=__doc__, epilog=_EXAMPLES, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    made.add_argument("directory", type=Path, metavar="DIRECTORY", help="images, with captions beside them or without")
    made.add_argument(
        "--model", metavar="PATH_OR_NAME", help="directory in the diffusers layout, or OWNER/NAME of the hub"
    )
    made.add_argument("--family", metavar="NAME", help="model family (what the model says; sdxl without a model)")
    made.add_argument("--vae", metavar="PATH_OR_NAME", help="VAE (the model's own)")
    made.add_argument("--name", help="name of the job, a directory in jobs/ (the directory's name)")
    made.add_argument("--steps", type=above_zero, metavar="N", help="optimizer steps (about 40 looks at every image)")
    made.add_argument("--resolution", type=_edge, metavar="N", help="edge of a square of the trained area")
    made.add_argument("--batch-size", type=above_zero, metavar="N", help="images a micro-batch (by GPU memory)")
    made.add_argument("--effective-batch", type=above_zero, metavar="N", help="images an update")
    made.add_argument("--prompt", metavar="TEXT", help="validation prompt (the first caption)")
    made.add_argument("--caption", metavar="TEXT", help="caption of images that have none")
    made.add_argument("--checkpoint-every", type=above_zero, metavar="N", help="steps (a quarter of all, at most 500)")
    made.add_argument("--processes", type=above_zero, default=1, metavar="N", help="ranks of the run (1)")
    made.add_argument("--root", type=Path, default=Path(), metavar="DIR", help="where training will be started (here)")
    return made


def _edge(text: str) -> int:
    if not LEAST_EDGE <= above_zero(text) <= MOST_EDGE:
        raise argparse.ArgumentTypeError(f"{text}: a number from {LEAST_EDGE} to {MOST_EDGE} is wanted")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write a job; returns the exit code."""
    options = parser().parse_args(arguments)
    try:
        return _make(options)
    except GH200Error as error:
        print(error.render(), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _make(options: argparse.Namespace) -> int:
    root = Path(os.path.abspath(options.root))
    if not root.is_dir():
        raise GH200Error(
            "The directory to start training in does not exist.", where=f"--root {root}", fix="make it first"
        )
    upstream = _upstream()
    directory, captions_from = with_captions(look_at(options.directory.expanduser()))
    model = choose_model(_placed(options.model), options.family, _placed(options.vae), upstream, os.environ)
    why_links = needs_links(directory, captions_from)
    directory, left = _captioned(directory, options.caption) if why_links else (directory, [])
    machine = _machine(upstream)
    _reject(options, directory, machine)
    reject_most_left_out(directory, left)
    while True:
        name = free_name(root, options.name, options.directory)
        wishes = JobOptions(
            name, **{key: getattr(options, key) for key in JobOptions.__dataclass_fields__ if key != "name"}
        )
        data = root / JOBS / name / "images" if why_links else Path(os.path.abspath(directory.root))
        job = choose(directory, data, model, machine, wishes, root)
        links = {image: directory.captions.get(image, "") for image in directory.usable} if why_links else None
        try:
            path = write_job(root, name, job.config, links, directory, contact_sheet(directory, job.rules))
        except NameTaken:
            # Another one took it since. A name that was asked for is rejected, one of ours is chosen again.
            if options.name is None:
                continue
            raise
        _say(directory, job, why_links, left)
        return _check(path, job, root, wishes, machine)


def _reject(options: argparse.Namespace, directory: ImageDirectory, machine: TargetMachine) -> None:
    if directory.unread and not any(directory.captions.values()) and not options.caption:
        raise GH200Error(
            "No caption can be read.",
            where=str(directory.root),
            why=some(f"{name} {why}" for name, why in directory.unread.items()),
            fix="write them as UTF-8, or give all images one with --caption",
        )
    if options.processes > max(1, machine.gpus):
        raise GH200Error(
            "There are fewer GPUs than processes.",
            where=f"--processes {options.processes}",
            why=f"this machine has {many(machine.gpus, 'GPU')}, and each process wants one of its own",
            fix="make the job on the machine that trains, or leave --processes out",
        )


def _upstream() -> Upstream:
    upstream, why = upstream_record(True, lambda text: print(text, file=sys.stderr, flush=True))
    if upstream is None:
        raise GH200Error(
            "Upstream's keys are not known here.", why=why, fix="build the fork: ./execute_gh200_rebase.sh"
        )
    return upstream


def _placed(model: str | None) -> str | None:
    """A directory that exists is meant from where the command was typed, not from where training starts."""
    return os.path.abspath(os.path.expanduser(model)) if model and Path(model).expanduser().exists() else model


def _captioned(directory: ImageDirectory, caption: str | None) -> tuple[ImageDirectory, list[str]]:
    """Images without a caption among captioned ones get --caption, or are left out by name."""
    without = directory.uncaptioned
    if not without or not any(directory.captions.values()):
        return directory, []
    if caption:
        return replace(directory, captions={**directory.captions, **dict.fromkeys(without, caption)}), []
    sizes = {name: size for name, size in directory.sizes.items() if name not in set(without)}
    return replace(directory, sizes=sizes), without


def _machine(upstream: Upstream) -> TargetMachine:
    known = upstream.keys.get("report_to", {}).get("choices") or ()
    gpus = read_gpus(Machine())
    return TargetMachine(
        (gpus.usable or len(gpus.devices)) if gpus.least_memory else 0,
        gpus.least_memory,
        len(os.sched_getaffinity(0)),
        next((name for name in ("simpletuner", "tensorboard") if name in known), "none"),
    )


def _say(directory: ImageDirectory, job: Job, why_links: str, left: list[str]) -> None:
    captions = sum(bool(text) for name, text in directory.captions.items() if name in directory.sizes)
    print(f"{many(len(directory.sizes), 'image')}, {many(captions, 'caption')}, {format_size(directory.bytes)}")
    for line in left_out_lines(directory, left):
        print(f"  left out: {line}")
    for note in directory.notes:
        print(f"  note: {note}")
    if why_links:
        print(f"  trained from links in {job.config['datasets'][0]['instance_data_dir']}: {why_links}")
    for what, why in job.reasons.items():
        print(f"  {what:<11}{why}")


def _check(path: Path, job: Job, root: Path, wishes: JobOptions, machine: TargetMachine) -> int:
    os.chdir(root)
    shown = path.relative_to(root)
    report = preflight(shown, loaded_values(job.config), wishes.processes, gpu=lambda: machine.gpu_bytes)
    for warning in report.warnings:
        print(f"  warning: {warning}")
    if report.problems:
        # It cannot be started, and would only be in the way of a better one of its name.
        shutil.rmtree(path.parent)
        raise GH200Error(
            "No job was made: its training could not work.",
            why="\n".join(report.problems),
            fix="choose otherwise; simpletuner gh200 new-job --help names every choice",
        )
    own = Path(".venv/bin/simpletuner")
    words = [str(own) if own.exists() else "simpletuner", "gh200", "train", str(shown.parent)]
    words += ["--processes", str(wishes.processes)] if wishes.processes > 1 or machine.gpus > 1 else []
    print(f"\nwritten {shown}; start it in {root}:\n{shlex.join(words)}")
    return 0
