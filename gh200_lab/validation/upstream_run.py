"""Runs upstream's test files in one pytest process, within a time limit, and reads what became of each test."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from ..place import environment

# Of a test: passed, failed, error, skipped or timed out. By file, then by test.
Results = dict[str, dict[str, str]]

TIMED_OUT = "timed out"
_WORST = (TIMED_OUT, "error", "failed", "skipped", "passed")
_MARKS = {"error": "error", "failure": "failed", "skipped": "skipped"}
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
# Settings of the shell this runs in would reach into upstream's tests, and differ from one machine to the next.
_FOREIGN = ("SIMPLETUNER_", "GH200_", "ACCELERATE_", "PYTEST_", "CONFIG_", "ENV", "HF_HOME", "HF_TOKEN")
_CONFIGURED = {"pytest.ini": "", "pyproject.toml": "[tool.pytest", "tox.ini": "[pytest]", "setup.cfg": "[tool:pytest]"}


@dataclass(frozen=True)
class Limits:
    """In seconds. A chunk may take `start` plus `file` for each of its files; `linger` is for its exit."""

    test: int = 300
    start: int = 300
    file: int = 60
    linger: int = 5


@dataclass(frozen=True)
class Ran:
    """`results` is None when the process left none; `end` says how it went."""

    results: Results | None
    end: str
    seconds: float


@dataclass(frozen=True)
class Runner:
    """`scratch` has short paths, for sockets; `logs` keeps what pytest said, by tree and first file."""

    scratch: Path
    logs: Path
    limits: Limits
    stop: threading.Event

    def run(self, tree: Path, files: Sequence[str], name: str) -> Ran:
        """Run test files in one process."""
        report, log = self.scratch / f"{name}.xml", self.logs / f"{name.partition('-')[0]}-{Path(files[0]).stem}.log"
        report.unlink(missing_ok=True)
        started = time.monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(
                self._command(tree, files, report),
                cwd=tree,
                env=self._environment(tree, name),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            end = self._wait(process, report, self.limits.start + self.limits.file * len(files))
        return Ran(read_report(report, tree, files), end, time.monotonic() - started)

    def _command(self, tree: Path, files: Sequence[str], report: Path) -> list[str]:
        command = [sys.executable, "-m", "pytest", "-q", "--continue-on-collection-errors", "-p", "no:cacheprovider"]
        command += [f"--junitxml={report}", "-o", "junit_family=xunit1", f"--timeout={self.limits.test}"]
        if not _has_configuration(tree):
            # Or pytest would take the one of the checkout around the copy.
            empty = self.scratch / "pytest.ini"
            empty.write_text("[pytest]\n", encoding="utf-8")
            command += ["-c", str(empty), f"--rootdir={tree}"]
        return [*command, *files]

    def _environment(self, tree: Path, name: str) -> dict[str, str]:
        """A home and a temporary directory of its own: upstream's tests write to both."""
        own = {}
        for variable, directory in (("HOME", self.scratch / f"{name}.home"), ("TMPDIR", self.scratch / f"{name}.tmp")):
            directory.mkdir(exist_ok=True)
            own[variable] = str(directory)
        inherited = environment(tree, **own)
        return {key: value for key, value in inherited.items() if not key.startswith(_FOREIGN)}

    def _wait(self, process: subprocess.Popen[bytes], report: Path, limit: int) -> str:
        deadline, leave_by = time.monotonic() + limit, float("inf")
        end = f"timed out after {limit} s"
        try:
            while time.monotonic() < min(deadline, leave_by) and not self.stop.is_set():
                try:
                    code = process.wait(0.2)
                    end = "ended" if report.is_file() else f"died with exit code {code}"
                    break
                except subprocess.TimeoutExpired:
                    if leave_by == float("inf") and report.is_file():
                        # Its report is written last; a thread upstream left behind can keep the process for ever.
                        leave_by = time.monotonic() + self.limits.linger
            else:
                end = "did not leave" if leave_by < float("inf") else end
        finally:
            _kill(process)
        return end


def _kill(process: subprocess.Popen[bytes]) -> None:
    """The process, and the children it may have left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _has_configuration(tree: Path) -> bool:
    found = ((tree / name, section) for name, section in _CONFIGURED.items())
    return any(path.is_file() and section in path.read_text(encoding="utf-8") for path, section in found)


def read_report(report: Path, tree: Path, files: Sequence[str]) -> Results | None:
    """A junit file as outcomes of every file that ran; None when it is missing or cut off."""
    try:
        root = ElementTree.parse(report).getroot()
    except (FileNotFoundError, ElementTree.ParseError):
        return None
    modules = {file.removesuffix(".py").replace("/", "."): file for file in files}
    results: Results = {file: {} for file in files}
    for case in root.iter("testcase"):
        module, test = _identity(case, tree, modules)
        outcomes = [_outcome(child) for child in case if child.tag in _MARKS] or ["passed"]
        tests = results[modules[module]]
        # A test has several entries when its clean-up fails too, or parts of it do.
        tests[test] = min([*outcomes, tests.get(test, "passed")], key=_WORST.index)
    return results


def _outcome(mark: ElementTree.Element) -> str:
    return TIMED_OUT if "from pytest-timeout" in mark.get("message", "") else _MARKS[mark.tag]


def _identity(case: ElementTree.Element, tree: Path, modules: Collection[str]) -> tuple[str, str]:
    """Module and test. What changes from run to run or from tree to tree is taken out of a test's name."""
    name = _ADDRESS.sub("0x", case.get("name", "").replace(str(tree), "."))
    place = case.get("classname", "")
    if not place:
        return case.get("name", ""), "collection"
    module = place
    while module not in modules:
        module = module.rpartition(".")[0]
    inside = place[len(module) + 1 :]
    return module, f"{inside}::{name}" if inside else name
