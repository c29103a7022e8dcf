"""The job script for Slurm: the script itself, with invented commands of Slurm and an invented training."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gh200_lab.place import ROOT

REPO = ROOT
SCRIPT = REPO / "scripts" / "slurm" / "gh200.sbatch"

TOOLS = {
    "srun": '[[ $1 == --kill-on-bad-exit=1 ]] && shift\nexport SLURM_NODEID=0\necho $$ >"$FAKE/step"\nexec "$@"\n',
    "scontrol": 'echo "$*" >>"$FAKE/scontrol.said"\n[[ $1 != show ]] || printf "%s\\n" one two\n',
    "scancel": 'echo "$*" >>"$FAKE/scancel.said"\nkill -USR1 "$(cat "$FAKE/step")"\n',
}
# Stands for the launcher and its ranks: what it was given, what it has inherited, and how it ends.
ACCELERATE = """#!{python}
import json, os, pathlib, signal, sys, time
fake, output = pathlib.Path(os.environ["FAKE"]), pathlib.Path("out")
ignored = signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
def leave(*_):
    (output / "checkpoint-7").mkdir(exist_ok=True)
    (output / "gh200_left.json").write_text("{{}}")
    sys.exit(1)
how = os.environ["HOW"]
if how != "deaf":
    signal.signal(signal.SIGUSR1, leave if how == "leaves" else lambda *_: sys.exit(1))
output.mkdir(exist_ok=True)
(fake / "started").write_text(json.dumps({{"arguments": sys.argv[1:], "ignored": ignored}}))
if how.isdigit():
    sys.exit(int(how))
time.sleep(30)
"""
CONFIG = {"output_dir": "out", "gh200_optimizations": {"checkpoint_on_signal": True}}


class Job:
    def __init__(self, directory: Path) -> None:
        self.directory, self.fake = directory, directory / "fake"
        self.output = directory / "out"
        for name, text in TOOLS.items():
            self._tool(self.fake / name, f"#!/usr/bin/env bash\n{text}")
        self._tool(directory / ".venv/bin/accelerate", ACCELERATE.format(python=sys.executable))
        (directory / ".venv/bin/python").symlink_to(sys.executable)
        (directory / "train.py").touch()
        (directory / "config.json").write_text(json.dumps(CONFIG))

    def _tool(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def run(self, how: str, *, warn: bool = False, **variables: str) -> tuple[int, str]:
        more = {"SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_SUBMIT_DIR": str(self.directory)}
        path = f"{self.fake}:{os.environ['PATH']}"
        (self.fake / "started").unlink(missing_ok=True)
        process = subprocess.Popen(
            ["bash", str(SCRIPT), "config.json", "--seed=1"],
            env={**os.environ, **more, "FAKE": str(self.fake), "HOW": how, "PATH": path, **variables},
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if warn:
            self._wait_for(self.fake / "started")
            process.send_signal(signal.SIGUSR1)
        output, _ = process.communicate(timeout=60)
        return process.returncode, output

    def _wait_for(self, path: Path) -> None:
        until = time.monotonic() + 30
        while not path.exists() and time.monotonic() < until:
            time.sleep(0.05)

    def asked_of_slurm(self) -> str:
        path = self.fake / "scontrol.said"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_a_warned_job_stops_and_is_requeued(job: Job) -> None:
    code, output = job.run("leaves", warn=True)
    assert code == 0 and "requeue 42" in job.asked_of_slurm(), output
    assert "queued again, to go on from checkpoint-7" in output
    assert (job.fake / "scancel.said").read_text() == "--signal=USR1 42\n"
    started = json.loads((job.fake / "started").read_text())
    assert started["ignored"], "the launcher would die of the ranks' signal"
    line = " ".join(started["arguments"])
    assert "--main_process_ip one" in line and "--machine_rank 0 train.py --config config.json" in line
    assert line.endswith("--resume_from_checkpoint=latest --seed=1")


@pytest.mark.parametrize("code", [0, 1, 2])
def test_another_exit_code_is_not_requeued(job: Job, code: int) -> None:
    # What an earlier run has left says nothing about this one.
    job.output.mkdir()
    (job.output / "gh200_left.json").write_text("{}")
    ended, output = job.run(str(code))
    assert ended == code, output
    assert "requeue" not in job.asked_of_slurm()


def test_exit_code_85_is_requeued_but_not_for_ever_without_progress(job: Job) -> None:
    outcomes = [job.run("85", GH200_FRUITLESS="2")[0] for _ in range(4)]
    assert outcomes == [0, 0, 4, 4] and job.asked_of_slurm().count("requeue 42") == 2
    (job.output / "checkpoint-9").mkdir()
    assert job.run("85", GH200_FRUITLESS="2")[0] == 0


def test_a_run_that_does_not_stop_in_time_is_requeued_too(job: Job) -> None:
    code, output = job.run("deaf", warn=True, GH200_LEAVE_SECONDS="1")
    assert code == 0 and "did not leave within 1 s" in output and "requeue 42" in job.asked_of_slurm()
    os.kill(int((job.fake / "step").read_text()), signal.SIGKILL)


def test_a_config_without_checkpoint_on_signal_is_rejected_before_anything_starts(job: Job) -> None:
    (job.directory / "config.json").write_text(json.dumps({"output_dir": "out"}))
    code, output = job.run("0")
    assert code == 4 and "checkpoint_on_signal is not true" in output and not (job.fake / "started").exists()
