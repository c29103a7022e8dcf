"""Check a job in seconds, then train it: stages and one bar in the terminal, everything else in a log file."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..config.arguments import command_line_values
from ..config.sources import read_settings
from ..diagnostic.gpu import read_gpus
from ..diagnostic.machine import Machine
from ..errors import GH200Error
from ..preemption.launcher import VARIABLE as LAUNCHER
from ..preemption.marker import MARKER
from ..preemption.signals import EXIT_CODE
from ..preflight.check import preflight
from ..preflight.report import PreflightError, Report
from ..preflight.startup import switched_off
from ..preflight.upstream_keys import package_of_upstream
from ..summary import STEPS, end_block, is_finished, resume_line
from ..telemetry.step_log import VARIABLE as STEP_LOG
from .check import above_zero
from .ranks import Ranks

LOG = "gh200_train.log"
PAUSE = 0.2
_EXAMPLES = f"""\
examples:
  simpletuner gh200 train jobs/first
  simpletuner gh200 train jobs/first --dry-run             the line that would be started, and nothing else
  simpletuner gh200 train config/my.json --max_train_steps=2000

Flags of SimpleTuner are passed on. Start it in the root of the checkout: paths in a config begin there.
exit code: 0 trained, 2 the config cannot work, {EXIT_CODE} stopped by a signal with a checkpoint, else as the training ended
"""
_INFO = re.compile(r"\[INFO\] (.*)")
_ERROR = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b.*", re.MULTILINE)


def parser() -> argparse.ArgumentParser:
    """The command line of `train`."""
    made = argparse.ArgumentParser(
        prog="simpletuner gh200 train", description=__doc__, epilog=_EXAMPLES, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    made.add_argument("job", type=Path, metavar="JOB", help="directory with a config.json, or a config file")
    made.add_argument("--processes", type=above_zero, metavar="N", help="ranks (one for each GPU)")
    made.add_argument("--dry-run", action="store_true", help="print the line that starts the training, and end")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Train a job; returns the exit code."""
    options, flags = parser().parse_known_args(arguments)
    try:
        return _train(options, flags)
    except GH200Error as error:
        print(error.render(), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def launch_command(root: Path, config: Path, processes: int, gpu: bool) -> list[str]:
    """Accelerate with the config file for this machine."""
    own = Path(sys.executable).parent / "accelerate"
    shown = own.relative_to(root) if own.is_relative_to(root) else own
    words = [str(shown) if own.exists() else "accelerate", "launch"]
    settings = root / "config" / f"accelerate_config_{'gh200' if gpu else 'cpu'}.yaml"
    if settings.is_file():
        words += ["--config_file", settings.relative_to(root).as_posix()]
    if processes > 1:
        words += [*(["--multi_gpu"] if gpu else []), "--num_processes", str(processes)]
    package = package_of_upstream()
    elsewhere = str(package / "train.py") if package else "train.py"
    script = next((name for name in ("train.py", "simpletuner/train.py") if (root / name).is_file()), elsewhere)
    return [*words, script, "--config", config.as_posix()]


def _config_of(job: Path) -> Path:
    found = [job / name for name in ("config.json", "config.toml") if (job / name).is_file()]
    if not job.is_file() and not found:
        raise GH200Error(
            "There is no such job.",
            where=f"{job}, looked for in {Path.cwd()}",
            why="it is neither a config file nor a directory with a config.json",
            fix="simpletuner gh200 new-job DIRECTORY makes one; name it as jobs/NAME",
        )
    return job if job.is_file() else found[0]


def _train(options: argparse.Namespace, flags: list[str]) -> int:
    path, began = _config_of(options.job.expanduser()), time.monotonic()
    gpus = read_gpus(Machine())
    usable = (gpus.usable or len(gpus.devices)) if gpus.least_memory else 0
    processes = options.processes or max(1, usable)
    command = [*launch_command(Path.cwd(), path, processes, usable > 0), *flags]
    if options.dry_run:
        print(shlex.join(command))
        return 0
    values = command_line_values(["--config", str(path), *flags])
    output = Path(str(values.get("output_dir") or "output")).expanduser()
    resume = resume_line(str(options.job), values)
    total = int(str(values.get("max_train_steps") or 0))
    if is_finished(values, output):
        _end(output, total, resume)
        print("finished    nothing to train: raise max_train_steps, or name another output_dir")
        return 0
    report = Report(str(path))
    if not switched_off(values):
        report = preflight(path, values, processes, say=lambda text: print(text, file=sys.stderr))
    if report.problems:
        raise PreflightError(report)
    where = f"{processes} {'GPU' if usable else 'CPU process'}{'s' * (processes > 1)}"
    print(f"{'check':<11} {path} can be started on {where} ({time.monotonic() - began:.1f} s)")
    for warning in (*report.warnings, *report.not_checked):
        print(f"{'':<11} warning: {warning}")
    return _run(command, values, output, total, resume)


def _run(command: list[str], values: Mapping[str, Any], output: Path, total: int, resume: str) -> int:
    output.mkdir(parents=True, exist_ok=True)
    log, marker, began = output / LOG, output / MARKER, time.time()
    print(f"{'log':<11} {log}", flush=True)
    steps = os.environ.get(STEP_LOG) or str(output / STEPS)
    environment = {**os.environ, LAUNCHER: str(os.getpid()), STEP_LOG: steps}
    saves = read_settings(values, os.environ).optimizations.checkpoint_on_signal
    with log.open("ab") as file:
        start = file.tell()
        view = _View(output, Path(steps), total, log, start)
        with Ranks(command, environment, file, bool(saves)) as ranks:
            while ranks.running():
                view.refresh()
                time.sleep(PAUSE)
    view.finish()
    saved = marker.is_file() and marker.stat().st_mtime >= began - 1
    code = EXIT_CODE if saved else 128 + ranks.received[0] if ranks.received else ranks.code
    if code and not ranks.received and not saved:
        print(f"{'failed':<11} exit code {code}\n{_reason(log, start)}", file=sys.stderr)
    elif code:
        print(f"{'stopped':<11} {'a checkpoint was saved' if saved else 'no checkpoint was saved for this'}")
    _end(output, total, resume)
    return code


def _end(output: Path, total: int, resume: str) -> None:
    print("\n".join(["", *end_block(output, total, resume)]), flush=True)


def _reason(log: Path, start: int) -> str:
    """The error that ended the training: one of ours whole, else the last exception's line, else the last lines."""
    with log.open("rb") as file:
        file.seek(start)
        text = file.read()[-(1 << 16) :].decode(errors="replace")
    before, ours, _ = text.rpartition("\n  fix: ")
    if ours:
        return f"{before.rpartition('\n\n')[2]}{ours}{text[len(before) + len(ours) :].partition('\n')[0]}"
    raised = [line for line in _ERROR.findall(text) if "CalledProcessError" not in line]
    return raised[-1] if raised else "\n".join(text.splitlines()[-5:])


@dataclass
class _View:
    """What a terminal shows while ranks run: the stage, then one bar; samples as they appear."""

    output: Path
    steps: Path
    total: int
    log: Path
    start: int
    began: float = field(default_factory=time.monotonic)
    times: list[tuple[int, float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._read = self.steps.stat().st_size if self.steps.is_file() else 0
        self._seen = set(self._samples())
        self._live = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"

    def refresh(self) -> None:
        """Read what is new; redraw the row of a terminal."""
        first = not self.times
        self._read_steps()
        if first and self.times:
            self._line("load", f"models, caches and datasets ({time.monotonic() - self.began:.0f} s)")
        new = sorted(set(self._samples()) - self._seen)
        self._seen |= set(new)
        if new:
            more = f" and {len(new) - 1} more" if len(new) > 1 else ""
            self._line("sample", f"{os.path.relpath(new[0])}{more}")
        if self._live:
            columns = shutil.get_terminal_size().columns
            row = f"{'train':<11} {self._bar()}" if self.times else f"{'load':<11} {self._last_line()}"
            print(f"\r\x1b[K{row[: columns - 1]}", end="", flush=True)

    def finish(self) -> None:
        """The last line of the training."""
        self.refresh()
        if self.times:
            self._line("train", self._bar())

    def _line(self, title: str, text: str) -> None:
        print(f"{'\r\x1b[K' if self._live else ''}{title:<11} {text}", flush=True)

    def _bar(self) -> str:
        step, loss, when = self.times[-1]
        before = self.times[-min(len(self.times), 20)]
        rate = (step - before[0]) / (when - before[2]) if when > before[2] else 0.0
        left = f", {(self.total - step) / rate:.0f} s left" if rate and self.total > step else ""
        share = step / self.total if self.total else 0.0
        full = round(min(1.0, share) * 20)
        return f"[{'#' * full}{'.' * (20 - full)}] {step}/{self.total or '?'} loss {loss:.4f}, {rate:.2f} steps/s{left}"

    def _read_steps(self) -> None:
        if not self.steps.is_file():
            return
        with self.steps.open("rb") as file:
            file.seek(self._read)
            whole, end, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + len(end)
        for entry in map(json.loads, whole.splitlines()):
            if entry.get("kind") == "step":
                self.times.append((entry["step"], entry["loss"], entry["time"]))

    def _samples(self) -> list[str]:
        return [str(path) for path in self.output.glob("validation_images/*.png")]

    def _last_line(self) -> str:
        with self.log.open("rb") as file:
            file.seek(max(self.start, file.seek(0, os.SEEK_END) - 8192))
            found = _INFO.findall(file.read().decode(errors="replace"))
        return found[-1] if found else "starting"
