"""The simulated device from Python: its libraries, processes that have only its driver, and whole commands on its devices."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OLD_BINDINGS = ROOT / "build" / "cuda-bindings-12.9"
OLD_REQUIREMENT = "cuda-bindings==12.9.*"
NO_COMPILER = 3
OURS = ("CUDA_SIM_", "GH200_", "SIMPLETUNER_")


class CannotBuild(RuntimeError):
    """A test that gets this has to be skipped with its text."""


@cache
def build() -> Path:
    """The directory with libcuda.so.1 and libnvidia-ml.so.1, compiled once per version of their sources."""
    done = subprocess.run([HERE / "build.sh"], capture_output=True, text=True)
    if done.returncode == NO_COMPILER and os.environ.get("CI") != "true":
        raise CannotBuild(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def old_bindings() -> Path:
    """The directory with cuda.bindings 12.9, installed once."""
    module = OLD_BINDINGS / "cuda" / "bindings" / f"driver{sysconfig.get_config_var('EXT_SUFFIX')}"
    if module.is_file():
        return OLD_BINDINGS
    found = subprocess.run(
        ["bash", "-c", 'source scripts/lib/bootstrap.sh && gh200_find_uv "$0"', sys.executable],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if found.returncode:
        raise CannotBuild(f"uv is needed to install cuda-bindings 12.9: {found.stderr.strip()[-300:]}")
    uv = found.stdout.strip()
    command = [uv, "pip", "install", "--quiet", "--target", OLD_BINDINGS, "--python", sys.executable, OLD_REQUIREMENT]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise CannotBuild(f"cuda-bindings 12.9 cannot be installed here: {done.stderr.strip()[-300:]}")
    return OLD_BINDINGS


def clean_environment() -> dict[str, str]:
    """This process's, without what would make the played machine another one."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    kept.pop("CUDA_VISIBLE_DEVICES", None)
    return kept


def _driver_environment(bindings: Path | None) -> dict[str, str]:
    path = [str(bindings)] if bindings else []
    search = {"PYTHONPATH": os.pathsep.join([*path, str(ROOT)]), "LD_LIBRARY_PATH": str(build())}
    # Threads of OpenMP spin while they wait: in a small process most of its time.
    return clean_environment() | search | {"OMP_NUM_THREADS": "1"}


@cache
def _zygote(bindings: Path | None) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, HERE / "zygote.py"],
        env=_driver_environment(bindings), cwd=build(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    atexit.register(process.kill)
    return process


@dataclass(frozen=True)
class Machine:
    """Processes in which the simulated device is the CUDA driver, and nothing more; `log` receives one line per driver call."""

    bindings: Path | None
    log: Path

    def run(self, code: str, **faults: object) -> str:
        """Run code in a process of its own and return its output; a failed assertion there fails the test here."""
        self.log.unlink(missing_ok=True)
        environment = {"CUDA_SIM_LOG": str(self.log)} | {f"CUDA_SIM_{k.upper()}": str(v) for k, v in faults.items()}
        zygote = _zygote(self.bindings)
        assert zygote.stdin and zygote.stdout
        request = {"code": code, "environment": environment, "directory": str(self.log.parent)}
        zygote.stdin.write(json.dumps(request) + "\n")
        zygote.stdin.flush()
        answer = json.loads(zygote.stdout.readline())
        assert answer["status"] == 0, f"exit {answer['status']}\n{answer['output']}"
        return str(answer["output"])

    def calls(self, name: str) -> list[dict[str, str]]:
        """The logged calls of one function, as the fields the simulated device wrote, with `result`."""
        return [fields for called, fields in read_log(self.log) if called == name]


def read_log(log: Path) -> list[tuple[str, dict[str, str]]]:
    """All logged calls in order: the function, and the fields the simulated device wrote, with `result`."""
    found = []
    for line in log.read_text().splitlines() if log.exists() else ():
        call, _, rest = line.partition(" ")
        fields, _, result = rest.rpartition(" -> ")
        found.append((call, dict(part.split("=", 1) for part in fields.split() if "=" in part) | {"result": result}))
    return found


@dataclass(frozen=True)
class Ran:
    """A command that ran on the simulated device: exit code, both outputs, one report per process that used the GPU."""

    code: int
    output: str
    errors: str
    reports: list[dict[str, Any]]

    def violations(self) -> list[str]:
        return [found["sentence"] for report in self.reports for found in report["violations"]]


def run(
    options: list[str],
    command: list[str],
    report: Path,
    *,
    environment: Mapping[str, str] | None = None,
    seconds: int = 300,
) -> Ran:
    """`run.sh OPTIONS --report REPORT COMMAND`; the report file is a new one."""
    report.unlink(missing_ok=True)
    started = subprocess.Popen(
        [HERE / "run.sh", *options, "--report", report, *command],
        env=clean_environment() | {"PYTHONPATH": str(ROOT)} | dict(environment or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = started.communicate(timeout=seconds)
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)  # its forked children too: none may spin on
    lines = report.read_text().splitlines() if report.exists() else []
    return Ran(started.returncode, output, errors, [json.loads(line) for line in lines])
