"""Quiet: one line per stage, however wide the terminal is and whatever the command prints; the rest is in the log."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from setup_lab import ROOT, program
from terminal import in_terminal

from gh200_lab import process, stages
from gh200_lab.quickstart import run as quickstart

STAGES = ROOT / "gh200_lab/stages.py"
TALKER = "for i in $(seq 40); do printf 'Downloading %090d\\n  Downloaded %d [%3d%%]\\n' $i $i $i; sleep 0.02; done; echo Installed 3 packages"
WIDTHS = (60, 80, 120)


def stage(log: Path, *words: str) -> list[str]:
    return [sys.executable, "-I", str(STAGES), "--log", str(log), *words]


@pytest.mark.parametrize("columns", WIDTHS)
def test_stage_takes_one_row_of_a_terminal(columns: int, tmp_path: Path) -> None:
    log = tmp_path / "logs/a.log"
    options = ["--percent", r"\[ *([0-9]+)%\]", "--done", "^Installed .*"]
    seen = in_terminal(stage(log, *options, "packages", "--", "bash", "-c", TALKER), columns, tmp_path)
    assert (seen.code, seen.rows) == (0, 1)
    assert seen.lines[0].startswith("packages         Installed 3 packages")
    assert any("[###" in frame and "%" in frame for frame in seen.frames[0]), seen.frames
    assert len(log.read_text().splitlines()) == 81


def test_bar_from_counted_lines(tmp_path: Path) -> None:
    counted = ["--counted", "^ *Downloaded ", "^ *Downloading "]
    script = "echo Downloading a; echo Downloading b; echo ' Downloaded a'; sleep 2"
    seen = in_terminal(stage(tmp_path / "a.log", *counted, "t", "--", "bash", "-c", script), 80, tmp_path)
    assert any("50% Downloaded a" in frame for frame in seen.frames[0]), seen.frames


def test_without_a_terminal_is_a_plain_line(tmp_path: Path) -> None:
    done = subprocess.run(
        stage(tmp_path / "a.log", "packages", "--", "bash", "-c", TALKER), capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout == ""
    assert "\r" not in done.stderr and "\x1b" not in done.stderr and done.stderr.count("\n") == 1
    assert done.stderr.startswith("packages ")


def test_shows_the_end_of_the_log_that_matters(tmp_path: Path) -> None:
    script = "seq 500; echo 'error: no space'; echo '  fix: make some'; exit 3"
    log = tmp_path / "a.log"
    log.write_text("error: of a stage before\n")
    seen = in_terminal(stage(log, "t", "--", "bash", "-c", script), 80, tmp_path)
    assert seen.code == 3 and seen.rows <= 5
    assert seen.lines[0].startswith("t                failed, exit code 3")
    assert [line.strip() for line in seen.lines[1:]] == ["error: no space", "fix: make some", "all of it: a.log"]


def test_failure_without_a_word_of_error_shows_the_last_lines(tmp_path: Path) -> None:
    script = "import os, signal; [print(n) for n in range(99)]; os.kill(os.getpid(), signal.SIGSEGV)"
    command = stage(tmp_path / "a.log", "t", "--", sys.executable, "-u", "-c", script)
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 128 + signal.SIGSEGV and "\n  98\n" in done.stderr and "\n  50\n" not in done.stderr


def test_gives_way_to_verbose(tmp_path: Path) -> None:
    done = subprocess.run(
        stage(tmp_path / "a.log", "-v", "t", "--", "bash", "-c", "seq 300; printf '\\xff\\n'"),
        capture_output=True,
        text=True,
    )
    shown = done.stderr.splitlines()
    assert shown[0] == "t:" and shown[1:301] == [str(number) for number in range(1, 301)]


def test_line_holds_for_wide_letters_and_a_terminal_of_no_width(tmp_path: Path) -> None:
    script = "printf '大きな名前のファイルを読んでいます%.0s' 1 2 3 4 5 6 7 8; echo; sleep 1"
    for columns in (10, 60):
        seen = in_terminal(stage(tmp_path / "a.log", "t", "--", "bash", "-c", script), columns, tmp_path)
        frames = [frame for frame in seen.frames[0][:-1] if frame]
        assert frames and all(frame.isascii() and len(frame) < columns for frame in frames), frames


def test_stage_that_is_ended_takes_its_command_along(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    process = subprocess.Popen(
        stage(tmp_path / "a.log", "t", "--", "bash", "-c", f"echo $$ >{note}; exec sleep 600"),
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # tests may themselves run under nohup
    )
    while not (note.is_file() and note.read_text().strip()):
        time.sleep(0.02)
    process.terminate()
    assert process.wait(20) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)


def test_logs_of_two_at_once_are_two_and_old_ones_go(tmp_path: Path) -> None:
    script = f'source "{ROOT}/scripts/lib/bootstrap.sh"; source "{ROOT}/scripts/lib/stages.sh"; '
    script += (
        'gh200_home() { echo "$1"; }; gh200_home() { echo ' + str(tmp_path) + "; }; gh200_open_log run; echo $GH200_LOG"
    )
    environment = {name: value for name, value in os.environ.items() if name != "GH200_LOG"}
    command = ["bash", "-c", f"set -euo pipefail; {script}"]
    names = {subprocess.run(command, env=environment, capture_output=True, text=True).stdout for _ in range(12)}
    assert len(names) == 12
    assert len(list((tmp_path / "build/logs").iterdir())) == 10
    inner = subprocess.run(command, env=environment | {"GH200_LOG": "outer.log"}, capture_output=True, text=True)
    assert inner.stdout.strip() == "outer.log"


# --- the tests' own command ---

CONFTEST = "def pytest_addoption(parser):\n    for name in ('--fork', '--network'):\n        parser.addoption(name, action='store_true')\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The real script on invented suites; what it sets up and checks first is as good as done."""
    root = tmp_path / "checkout"
    for name in ("scripts/lib", "scripts/run_all_tests.sh", "gh200_lab/stages.py"):
        source, target = ROOT / name, root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    for name in ("scripts/setup.sh", "scripts/gates.sh"):
        program(root / name, "#!/bin/bash\necho gates: passed\n")
    program(root / "execute_gh200_rebase.sh", "#!/bin/bash\necho build/fork is the fork of pypi:1.0\n")
    (root / ".venv/bin").mkdir(parents=True)
    program(root / ".venv/bin/python", f'#!/bin/bash\nexec {sys.executable} "$@"\n')
    for name in ("unit", "e2e"):
        (root / "tests" / name).mkdir(parents=True)
        (root / "tests" / name / f"test_{name}.py").write_text(
            "import pytest\n@pytest.mark.parametrize('n', range(30))\ndef test_it(n): print('talk')\n"
        )
    for name in ("golden", "integration", "docs"):
        (root / "tests" / name).mkdir()
    (root / "tests/conftest.py").write_text(CONFTEST)
    (root / "pytest.ini").write_text("[pytest]\nmarkers =\n  slow: x\naddopts = -ra\n")
    return root


def suites(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GH200_LOG", "PYTEST"))}
    command = [str(checkout / "scripts/run_all_tests.sh"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)


def test_tests_end_with_what_pytest_ends_with(checkout: Path) -> None:
    done = suites(checkout)
    assert done.returncode == 0, done.stderr
    assert "talk" not in done.stdout + done.stderr and len((done.stdout + done.stderr).splitlines()) < 15
    closing, verdict, took, log = done.stdout.splitlines()[-4:]
    assert "30 passed" in closing and closing.startswith("==") and verdict == "all tests passed"
    assert re.fullmatch(r"took 0 min [0-9]{2} s; CPU time 0 min [0-9]{2} s", took)
    assert (checkout / log.removeprefix("log: ")).read_text().count("test_unit.py") > 0
    assert [line.split()[0] for line in done.stderr.splitlines()] == ["gates", "fork", "fork's", "unit"]


@pytest.mark.parametrize("suite", ["unit", "e2e"])
def test_tests_show_a_failure_whole(checkout: Path, suite: str) -> None:
    broken = checkout / f"tests/{suite}/test_{suite}.py"
    broken.write_text(broken.read_text() + "def test_bad():\n    wanted = 41\n    assert wanted == 42\n")
    done = suites(checkout)
    assert done.returncode == 1 and done.stdout.splitlines()[-3] == "tests failed"
    assert "assert 41 == 42" in done.stderr and "1 failed, 30 passed" in done.stdout
    assert f"FAILED tests/{suite}/test_{suite}.py::test_bad" in done.stdout


@pytest.mark.parametrize("suite", ["unit", "e2e"])
def test_tests_fail_by_the_exit_code_whatever_was_printed(checkout: Path, suite: str) -> None:
    ends = "def pytest_unconfigure():\n    import os\n    os._exit(3)\n"
    (checkout / f"tests/{suite}/conftest.py").write_text(ends)
    done = suites(checkout)
    assert done.returncode == 3 and "tests failed" in done.stdout.splitlines()
    assert done.stdout.count("30 passed") == 2


def test_tests_in_a_terminal(checkout: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GH200_LOG", "PYTEST"))}
    for columns in (80, 120):
        seen = in_terminal([str(checkout / "scripts/run_all_tests.sh"), "--fast"], columns, checkout, environment)
        assert seen.code == 0 and seen.rows < 10, seen.lines
        assert any("30 passed" in line for line in seen.lines)


LONG = """
import json, sys, time
from pathlib import Path
from gh200_lab import stages
from gh200_lab.quickstart.run import _progress
log = Path("run.jsonl")
log.write_text(json.dumps({"kind": "step", "step": 1600, "loss": 1.0542, "learning_rate": 1.25e-5, "effective_batch_size": 128}) + "\\n")
with stages.Stage("training", stages.Log(Path("a.log"))) as stage:
    stage._began -= 4000
    stage.show(*_progress(log, 24000, stage.log))
"""


def test_quick_start_shows_lines_of_simpletuner_and_not_of_its_libraries(tmp_path: Path) -> None:
    log = stages.Log(tmp_path / "a.log")
    log.path.write_text(
        "[RANK 0] 2026 [INFO] Loading tokenizer\nW1117 08:41 torch/utils: a warning\nTo avoid it, ...\n"
    )
    assert quickstart._progress(tmp_path / "run.jsonl", 24, log) == (None, "Loading tokenizer")
    log.path.write_text("W1117 08:41 torch/utils: a warning\n")
    assert quickstart._progress(tmp_path / "run.jsonl", 24, log) == (None, "loading")


def test_quick_start_on_a_full_disk_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "images/0.png")

    monkeypatch.setattr(quickstart, "find_place", lambda: None)
    monkeypatch.setattr(quickstart, "WORK", tmp_path / "work")
    monkeypatch.setattr(quickstart, "make_model", full)
    monkeypatch.setattr(process, "end_well_when_asked_to", lambda: None)
    monkeypatch.setattr(shutil, "disk_usage", lambda directory: SimpleNamespace(free=0))
    monkeypatch.setattr(sys, "argv", ["quickstart"])
    monkeypatch.setenv("GH200_LOG", str(tmp_path / "a.log"))
    assert quickstart.main() == 1
    said = capsys.readouterr().err
    assert "No space left on device" in said and "fix: the disk that holds build/ is full" in said


@pytest.mark.parametrize("columns", [80, 120])
def test_quick_start_keeps_loss_and_rate_in_sight(columns: int, tmp_path: Path) -> None:
    seen = in_terminal([sys.executable, "-c", LONG], columns, tmp_path, os.environ | {"PYTHONPATH": str(ROOT)})
    assert seen.code == 0, seen.raw
    assert any("1600/24000 loss 1.054 lr 1.3e-05" in frame for frame in seen.frames[0]), seen.frames


def test_stage_whose_terminal_is_closed_ends_its_command(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    process = subprocess.Popen(
        stage(tmp_path / "a.log", "t", "--", "bash", "-c", f"echo $$ >{note}; exec sleep 600"),
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # tests may themselves run under nohup
    )
    while not (note.is_file() and note.read_text().strip()):
        time.sleep(0.02)
    process.send_signal(signal.SIGHUP)
    assert process.wait(20) == 128 + signal.SIGHUP
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)


# --- the training run's own console ---

BAR = """
import json, sys, time
from tqdm.auto import tqdm
from simpletuner.gh200.console import show_in_bar
total, extra = int(sys.argv[1]), json.loads(sys.argv[2])
bar = tqdm(range(0, total), initial=total // 2, desc="Epoch 1/100 Steps", dynamic_ncols=True, mininterval=0)
for _ in range(2):
    time.sleep(0.02)
    bar.set_description("Epoch 11/100, Steps")
    show_in_bar(accum=16, eff_batch=128)
    bar.update(1)
    bar.set_postfix(step_loss=0.123456, lr=1.25e-5, **extra)
bar.close()
"""


@pytest.mark.parametrize("columns", [80, 120, 160])
@pytest.mark.parametrize("total", [24, 100_000])
@pytest.mark.parametrize("extra", [{}, {"prodigy_d": 0.001}], ids=["plain", "prodigy"])
def test_bar_keeps_loss_and_rate_in_sight(columns: int, total: int, extra: dict[str, float], tmp_path: Path) -> None:
    script = tmp_path / "bar.py"
    script.write_text("from gh200_lab.checkout import see_this_checkout; see_this_checkout()\n" + BAR)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script), str(total), json.dumps(extra)]
    seen = in_terminal(command, columns, tmp_path, environment)
    last = next(frame for frame in reversed(seen.frames[-1]) if frame.strip())
    assert seen.code == 0 and len(last) <= columns
    assert "lr=1.25e-5" in last and "step_loss=0.123" in last and f"/{total}" in last, last
    first = next(frame for frame in seen.frames[-1] if "lr=" in frame)
    assert extra or "step_loss=0.123" in first, first
    if not extra:
        assert "accum=16, eff_batch=128" in last


def test_console_says_the_rank_once_and_keeps_the_level(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "log.py"
    script.write_text(
        "from gh200_lab.checkout import see_this_checkout; see_this_checkout()\n"
        "import logging, sys\nfrom simpletuner.gh200.console import tidy_console\n"
        "root = logging.getLogger(); root.setLevel('DEBUG')\n"
        "for handler in (logging.StreamHandler(sys.stdout), logging.FileHandler(sys.argv[1])):\n"
        "    handler.setFormatter(logging.Formatter('[RANK 0] %(levelname)s %(message)s')); root.addHandler(handler)\n"
        "tidy_console(); tidy_console()\n"
        "root.info('[RANK 0] saving %s', 'it'); root.warning('beware of [RANK 0]'); root.info({'a': 1})\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("SIMPLETUNER_LOG_LEVEL", None)
    everything = "[RANK 0] INFO saving it\n[RANK 0] WARNING beware of [RANK 0]\n[RANK 0] INFO {'a': 1}\n"
    for level, shown in (("", everything), ("WARNING", everything.splitlines(True)[1]), ("nonsense", everything)):
        log = tmp_path / f"{level}.log"
        command = [sys.executable, str(script), str(log)]
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment | {"SIMPLETUNER_LOG_LEVEL": level}
        )
        assert done.stdout == shown, done.stderr
        assert log.read_text() == everything
