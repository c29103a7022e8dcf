"""The acceptance run from end to end on the simulated GPU: real trainings of the fork, compared bit by bit."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gh200_lab.place import ROOT
from tests.cuda_sim.processes import HERE, CannotBuild, build, clean_environment, run

pytestmark = pytest.mark.timeout(2400)
# Judged on a GH200 only, or asked for.
LEFT_OUT = {"resident_is_cheap", "to_device_speed", "to_host_speed"}
COMMAND = [sys.executable, str(ROOT / "gh200_diagnostic.py"), "--acceptance"]
LIMIT = 2000


@pytest.fixture(autouse=True)
def _cuda_sim() -> None:
    try:
        build()
    except CannotBuild as reason:
        pytest.skip(str(reason))


@pytest.mark.slow(reason="the whole acceptance run: five cold trainings")
def test_runs_to_its_end_on_the_simulated_device(tmp_path: Path) -> None:
    target, left = tmp_path / "acceptance.json", tmp_path / "left.jsonl"
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    words = [*COMMAND, "--minutes", "30", "--large", "--output", str(target)]
    ran = run(["--hbm-mb", "64"], words, left, environment={"TMPDIR": str(temporary)}, seconds=LIMIT)
    report = json.loads(target.read_text())
    verdicts = {claim["id"]: claim["verdict"] for claim in report["claims"]}
    assert ran.code == 0, json.dumps(report["claims"], indent=1)
    assert {name for name, verdict in verdicts.items() if verdict != "shown"} == LEFT_OUT, report["claims"]
    assert ran.violations() == [] and left_over(temporary) == []
    stock, crowded, managed, on, large = report["trainings"]
    assert crowded["out_of_memory"] and managed["left_bytes"] == crowded["left_bytes"] < stock["torch_bytes"]
    assert stock["losses"] == managed["losses"] == on["losses"] and len(stock["losses"]) == 5
    assert large["code"] == 0 and large["losses"] and large["torch_bytes"] > 64 << 20


@pytest.mark.slow(reason="three acceptance runs, each stopped in a training")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_stopped_in_a_training_leaves_nothing(tmp_path: Path, number: int) -> None:
    target, temporary = tmp_path / "acceptance.json", tmp_path / "tmp"
    temporary.mkdir()
    command = [str(HERE / "run.sh"), "--hbm-mb", "64", *COMMAND, "--output", str(target)]
    environment = clean_environment() | {"TMPDIR": str(temporary)}
    started = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    _until(lambda: trainers(temporary) != [], 600)
    started.send_signal(number)
    output, _ = started.communicate(timeout=60)
    _until(lambda: trainers(temporary) == [] and left_over(temporary) == [], 60)
    if number == signal.SIGKILL:
        assert not target.exists()
        return
    assert started.returncode == 128 + number, output
    report = json.loads(target.read_text())
    assert report["ended"] == f"interrupted by {signal.Signals(number).name}" and "Traceback" not in output
    assert {claim["verdict"] for claim in report["claims"] if claim["part"] == "pressure"} == {"shown"}


def left_over(temporary: Path) -> list[str]:
    """Torch keeps a cache of its own there, as in every training, from when it is loaded."""
    return [path.name for path in temporary.iterdir() if not path.name.startswith("torchinductor_")]


def trainers(temporary: Path) -> list[str]:
    """Processes at work below a directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink().is_relative_to(temporary) and "train.py" in (
                process / "cmdline"
            ).read_text():
                found.append(process.name)
        except OSError:
            continue
    return found


def test_set_up_knows_the_torch_that_upstream_asks_for() -> None:
    asked = re.search(r'"torch>=([0-9.]+)"', (ROOT / "build/fork/setup.py").read_text())
    known = re.search(r"GH200_LEAST_TORCH=([0-9.]+)", (ROOT / "scripts/lib/torch.sh").read_text())
    assert asked and known and asked[1] == known[1]


def _until(true: object, seconds: float) -> None:
    assert callable(true)
    give_up = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.1)
