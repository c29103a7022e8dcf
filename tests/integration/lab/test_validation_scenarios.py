"""The validation scripts' common ground: lines, exit codes, JSON, rejections; and that nothing outlives a scenario."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from gh200_lab.place import ROOT
from gh200_lab.validation import combined_features

SCRIPT = """
import sys
from gh200_lab.scenario import Failed, Scenario, Skipped, main, parser

def good(place, options): return f"the fork is {place.fork.name}"
def unable(place, options): raise Skipped("there is no GPU")
def bad(place, options): raise Failed("saw 2, expected 1")
def surprising(place, options): return str(1 / 0)

known = {"good": good, "unable": unable, "bad": bad, "surprising": surprising}
levels = {"good": "unit", "unable": "system", "bad": "integration", "surprising": "system"}
sys.exit(main([Scenario(name, levels[name], run) for name, run in known.items()], parser("about").parse_args()))
"""
# A child of a child that would go on for minutes, as a launcher's trainer would.
LAUNCHER = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(300)', sys.argv[1]])"
RUNNER = """
import sys
from pathlib import Path
from gh200_lab import process
process.end_well_when_asked_to()
command = [sys.executable, "-c", {launcher!r}, {mark!r}]
process.run(command, cwd=Path("."), environment={{}}, log=Path("log"), limit={limit})
"""


@pytest.fixture
def fork(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    sections = tree / "simpletuner/simpletuner_sdk/server/services/field_registry/sections"
    sections.mkdir(parents=True)
    (tree / "simpletuner" / "__init__.py").touch()
    (sections / "advanced.py").write_text("def register(registry):\n    attention_mechanisms = ['native', 'fast']\n")
    return tree


def run(script: Path | str, *arguments: str, fork: Path) -> subprocess.CompletedProcess[str]:
    module = ["-m", script] if isinstance(script, str) else [str(script)]
    command = [sys.executable, *module, *arguments]
    environment = os.environ | {"GH200_FORK": str(fork), "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.parametrize(
    ("names", "code", "counts"),
    [
        (["good"], 0, "1 passed, 0 failed, 0 skipped"),
        (["unable"], 0, "0 passed, 0 failed, 1 skipped"),
        (["good", "bad"], 1, "1 passed, 1 failed, 0 skipped"),
        ([], 1, "1 passed, 2 failed, 1 skipped"),
    ],
)
def test_the_exit_code_is_the_outcome(script: Path, fork: Path, names: list[str], code: int, counts: str) -> None:
    done = run(script, *(part for name in names for part in ("--only", name)), fork=fork)
    assert done.returncode == code, done.stderr
    assert done.stdout.splitlines()[-1] == counts


def test_each_scenario_has_one_line_and_a_surprise_stops_no_other(script: Path, fork: Path) -> None:
    done = run(script, fork=fork)
    lines = [line.split()[:2] for line in done.stdout.splitlines()[:-1]]
    assert lines == [["passed", "good"], ["skipped", "unable"], ["failed", "bad"], ["failed", "surprising"]]
    assert "there is no GPU" in done.stdout and "saw 2, expected 1" in done.stdout and "the fork is tree" in done.stdout
    assert "ZeroDivisionError" in done.stdout and "Traceback" in done.stderr


def test_an_unknown_scenario_is_rejected_with_the_known_ones(script: Path, fork: Path) -> None:
    done = run(script, "--only", "god", fork=fork)
    assert done.returncode == 2 and done.stdout == ""
    assert "god" in done.stderr and "good, unable, bad, surprising" in done.stderr


def test_a_missing_fork_is_rejected_with_the_way_to_build_one(script: Path, tmp_path: Path) -> None:
    done = run(script, fork=tmp_path / "nowhere")
    assert done.returncode == 2 and done.stdout == ""
    assert "nowhere" in done.stderr and "execute_gh200_rebase.sh" in done.stderr


def test_a_level_and_the_list(script: Path, fork: Path) -> None:
    assert run(script, "--level", "system", fork=fork).stdout.splitlines()[-1] == "0 passed, 1 failed, 1 skipped"
    listed = run(script, "--list", fork=fork)
    assert listed.returncode == 0 and [line.split() for line in listed.stdout.splitlines()][1] == ["unable", "system"]


def test_json_goes_to_a_file_or_alone_to_stdout(script: Path, fork: Path, tmp_path: Path) -> None:
    run(script, "--json", str(tmp_path / "out.json"), fork=fork)
    alone = run(script, "--json", "-", fork=fork)
    written, printed = json.loads((tmp_path / "out.json").read_text()), json.loads(alone.stdout)
    assert written["counts"] == printed["counts"] == {"passed": 1, "failed": 2, "skipped": 1}
    assert [entry["verdict"] for entry in printed["scenarios"]] == ["passed", "skipped", "failed", "failed"]
    assert "passed   good" in alone.stderr


def test_the_combined_script_knows_upstreams_attention_backends(fork: Path) -> None:
    combined = "gh200_lab.validation.combined_features"
    listed = [line.split()[0] for line in run(combined, "--list", fork=fork).stdout.splitlines()]
    assert listed == ["backend-native", "backend-fast", "manual-requests", "audio-in-memory"]
    unknown = run(combined, "--backend", "slow", fork=fork)
    assert unknown.returncode == 2 and "slow" in unknown.stderr and "native, fast" in unknown.stderr
    for flag in ("--manual", "--manual-validation"):
        assert run(combined, flag, "--list", fork=fork).stdout.split() == ["manual-requests", "system"]


@pytest.mark.parametrize("script", ["combined_features", "gh200_features"])
def test_no_fork_is_exit_code_2_for_the_scripts_too(script: str, tmp_path: Path) -> None:
    done = run(f"gh200_lab.validation.{script}", fork=tmp_path / "nowhere")
    assert done.returncode == 2 and "fix:" in done.stderr


def still_there(mark: str) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            content = entry.read_bytes()
        except OSError:
            continue
        if mark.encode() in content.split(b"\0"):
            found.append(entry.parent.name)
    return found


def wait_until(condition: object, seconds: float = 30) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(("limit", "stop"), [(2, None), (300, signal.SIGTERM), (300, signal.SIGINT)])
def test_children_end_with_the_time_limit_and_with_the_script(tmp_path: Path, limit: int, stop: int | None) -> None:
    mark = f"mark-{os.getpid()}-{limit}-{stop}"
    code = RUNNER.format(launcher=LAUNCHER, mark=mark, limit=limit)
    command, environment = [sys.executable, "-c", code], os.environ | {"PYTHONPATH": str(ROOT)}
    # A shell that starts the tests in the background lets them ignore Ctrl-C, and so their children.
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True, preexec_fn=heard
    ) as runner:
        assert wait_until(lambda: len(still_there(mark)) == 2)
        if stop is not None:
            runner.send_signal(stop)
        _, errors = runner.communicate(timeout=60)
    assert runner.returncode != 0
    assert stop is not None or "did not end within 2 s" in errors
    assert wait_until(lambda: not still_there(mark))


def test_an_attention_backend_is_taken_in_both_spellings(monkeypatch: pytest.MonkeyPatch) -> None:
    for spelled in ("flash_attn_3", "flash-attn-3"):
        monkeypatch.setattr(sys, "argv", ["test_combined_features.sh", "--backend", spelled])
        assert combined_features.arguments(["native", "flash-attn-3"]).only == ["backend-flash-attn-3"]
