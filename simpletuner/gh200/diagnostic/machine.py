"""Everything the diagnostic reads from a machine, in one object: tests replace any part by recorded values."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..memory.driver import load_driver

PACKAGE = Path(__file__).resolve().parents[2]
_SECONDS_TO_DIE = 2.0


@dataclass(frozen=True)
class Ran:
    """How a command ended; `problem` says why there is no exit code, `hung` that it was a lack of an answer."""

    code: int | None
    output: str = ""
    errors: str = ""
    problem: str = ""
    hung: bool = False

    @property
    def last_line(self) -> str:
        """Last line of stderr, or of stdout."""
        lines = [line.strip() for line in (self.errors.strip() or self.output.strip()).splitlines() if line.strip()]
        return lines[-1] if lines else f"exit code {self.code}"

    def marked(self, mark: str) -> str | None:
        """The rest of the last line that begins with a mark; None where the command failed or printed none."""
        found = [line.removeprefix(mark) for line in self.output.splitlines() if line.startswith(mark)]
        return found[-1] if found and self.code == 0 else None


def run_limited(command: Sequence[str], seconds: float, environ: Mapping[str, str] | None = None) -> Ran:
    """Runs a command with a time limit that also holds for what the command itself started."""
    # Files, not pipes: a grandchild that survives would keep a pipe open and this process waiting.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                list(command), stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
                env=None if environ is None else dict(environ), start_new_session=True,
            )  # fmt: skip
        except FileNotFoundError:
            return Ran(None, problem=f"there is no {command[0]} on PATH")
        except OSError as error:
            return Ran(None, problem=f"{command[0]} cannot be started: {error.strerror}")
        problem = ""
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            problem = f"no answer from {Path(command[0]).name} within {seconds:g} s"
        finally:
            _end(process)
        for file in (output, errors):
            file.seek(0)
        said, complained = (file.read().decode(errors="replace") for file in (output, errors))
        return Ran(None if problem else process.returncode, said, complained, problem, hung=bool(problem))


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(_SECONDS_TO_DIE)
    except subprocess.TimeoutExpired:
        pass  # stuck in the kernel, where no signal reaches it


def found_in(path: Path, pattern: str) -> str | None:
    """What the first group of a pattern matches in a file; None where there is no such file or no match."""
    try:
        found = re.search(pattern, path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    except OSError:
        return None
    return found[1] if found else None


def _nvml() -> Any:
    """The NVML bindings, or the reason why there are none."""
    try:
        return import_module("pynvml")
    except Exception as error:  # a broken package may raise anything
        return f"nvidia-ml-py cannot be imported: {error}"


def _filesystem(path: Path) -> tuple[int, int] | None:
    """Total and free bytes of the file system a path is on."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def _installed(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _importable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


@dataclass(frozen=True)
class Machine:
    """The real machine; a test replaces the fields it has recorded."""

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    architecture: str = field(default_factory=platform.machine)
    kernel: str = field(default_factory=platform.release)
    page_size: int = field(default_factory=lambda: os.sysconf("SC_PAGE_SIZE"))
    cpus: frozenset[int] = field(default_factory=lambda: frozenset(os.sched_getaffinity(0)))
    python: tuple[int, int, int] = (sys.version_info[0], sys.version_info[1], sys.version_info[2])
    package: Path = PACKAGE
    run: Callable[[Sequence[str], float, Mapping[str, str] | None], Ran] = run_limited
    nvml: Callable[[], Any] = _nvml
    driver: Callable[[], Any] = load_driver
    filesystem: Callable[[Path], tuple[int, int] | None] = _filesystem
    installed: Callable[[str], str | None] = _installed
    importable: Callable[[str], bool] = _importable

    @property
    def tree(self) -> Path:
        """The directory the package lies in: the repository, a fork, or whatever it was copied to."""
        return self.package.parent
