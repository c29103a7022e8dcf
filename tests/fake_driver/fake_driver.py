"""Builds the stand-in libcuda.so.1 and runs Python behind it, with the cuda.bindings of either generation."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SOURCES = tuple(HERE / name for name in ("libcuda.c", "model.c", "transfers.c"))
HEADERS = tuple(HERE / name for name in ("entry.h", "model.h"))
OLD_BINDINGS = ROOT / "build" / "cuda-bindings-12.9"
OLD_REQUIREMENT = "cuda-bindings==12.9.*"


class CannotBuild(RuntimeError):
    """A test that gets this has to be skipped with its text."""


def build() -> Path:
    """The folder with libcuda.so.1, compiled once per version of its sources."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in (*SOURCES, *HEADERS))).hexdigest()[:16]
    folder = ROOT / "build" / "fake_driver" / digest
    library = folder / "libcuda.so.1"
    if library.is_file():
        return folder
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise CannotBuild("no C compiler on this machine")
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"libcuda.{os.getpid()}.so"
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, "-o", partial, *SOURCES, "-lpthread"], check=True)
    partial.replace(library)
    return folder


def old_bindings() -> Path:
    """The folder with cuda.bindings 12.9, installed once."""
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


def _environment(bindings: Path | None) -> dict[str, str]:
    ours = ("FAKE_CUDA_", "GH200_", "SIMPLETUNER_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    path = [str(bindings)] if bindings else []
    kept["PYTHONPATH"] = os.pathsep.join([*path, str(ROOT)])
    kept["LD_LIBRARY_PATH"] = str(build())
    return kept


@cache
def _zygote(bindings: Path | None) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, HERE / "zygote.py"],
        env=_environment(bindings), cwd=build(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    atexit.register(process.kill)
    return process


@dataclass(frozen=True)
class Machine:
    """Processes in which the stand-in is the CUDA driver; `log` receives one line per driver call."""

    bindings: Path | None
    log: Path

    def run(self, code: str, **faults: object) -> str:
        """Run code in a process of its own and return its output; a failed assertion there fails the test here."""
        self.log.unlink(missing_ok=True)
        environment = {"FAKE_CUDA_LOG": str(self.log)} | {f"FAKE_CUDA_{k.upper()}": str(v) for k, v in faults.items()}
        zygote = _zygote(self.bindings)
        assert zygote.stdin and zygote.stdout
        request = {"code": code, "environment": environment, "folder": str(self.log.parent)}
        zygote.stdin.write(json.dumps(request) + "\n")
        zygote.stdin.flush()
        answer = json.loads(zygote.stdout.readline())
        assert answer["status"] == 0, f"exit {answer['status']}\n{answer['output']}"
        return answer["output"]

    def calls(self, name: str) -> list[dict[str, str]]:
        """The logged calls of one function, as the fields the stand-in wrote, with `result`."""
        found = []
        for line in self.log.read_text().splitlines() if self.log.exists() else ():
            call, _, rest = line.partition(" ")
            if call == name:
                fields, _, result = rest.rpartition(" -> ")
                found.append(dict(part.split("=", 1) for part in fields.split() if "=" in part) | {"result": result})
        return found
