"""The rules that tests/conftest.py and tests/support/in_process.py enforce: each on one small test file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gh200_lab.place import ROOT

RUN = [sys.executable, "-m", "pytest", "-q", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)]
NO_FORK = "import pathlib, tests.conftest\ntests.conftest.FORK = pathlib.Path(__file__).parent\n"


def pytest_on(directory: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs pytest on a test file of that text, with the repository's configuration."""
    (directory / "test_it.py").write_text(text)
    command = [*RUN, *options, str(directory / "test_it.py")]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (directory, ROOT, ROOT / "tests/support")))}
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("mark", "code"),
    [("slow", 4), ("slow()", 4), ('slow(reason=" ")', 4), ('slow(reason="two trainings")', 0)],
)
def test_a_slow_mark_without_a_reason_fails_collection(tmp_path: Path, mark: str, code: int) -> None:
    text = f"import pytest\n@pytest.mark.{mark}\ndef test_it(): pass\n"
    done = pytest_on(tmp_path, text, "--collect-only", "-p", "tests.conftest")
    assert done.returncode == code, done.stdout + done.stderr
    assert ("::test_it" in done.stderr) == (code != 0)


def test_a_module_that_imports_simpletuner_is_skipped_without_a_current_fork(tmp_path: Path) -> None:
    (tmp_path / "no_fork.py").write_text(NO_FORK)
    text = "from simpletuner.helpers.data_backend import local\ndef test_it(): pass\n"
    done = pytest_on(tmp_path, text, "-p", "no_fork", "-p", "tests.conftest")
    assert done.returncode == 5, done.stdout + done.stderr
    assert "1 skipped" in done.stdout and "no fork in build/fork" in done.stdout and "--skip-tests" in done.stdout
    broken = pytest_on(tmp_path, "import simpletuner.gh200.no_such_module\n", "-p", "no_fork", "-p", "tests.conftest")
    assert broken.returncode == 2 and "no_such_module" in broken.stdout


def test_a_unit_test_that_starts_a_process_or_opens_a_socket_fails(tmp_path: Path) -> None:
    offences = {
        "import subprocess; subprocess.run(['true'])": "subprocess.Popen",
        "import os; os.fork() or os._exit(0)": "os.fork",
        "import os; os.system('true')": "os.system",
        "import socket; socket.socket()": "socket.__new__",
        "import multiprocessing as m; m.get_context('spawn').Process(target=print).start()": "subprocess.Popen",
    }
    (tmp_path / "library.py").write_text("import socket; socket.socket().close()\n")
    text = "import pytest\ndef test_file(): open('/dev/null').close()\ndef test_import(): import library\n"
    for number, line in enumerate(offences):
        text += f"def test_{number}(): {line}\n@pytest.fixture\ndef do_{number}(): {line}\n"
        text += f"def test_setup_{number}(do_{number}): pass\n"
    done = pytest_on(tmp_path, text, "-p", "in_process")
    count = len(offences)
    assert f"{count} failed, 2 passed, {count} errors" in done.stdout, done.stdout + done.stderr
    assert {event for event in offences.values() if done.stdout.count(event) < 2} == set()
