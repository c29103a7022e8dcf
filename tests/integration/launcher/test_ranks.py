"""`simpletuner gh200 train` and its processes: signals reach the ranks, none is left behind, every end has its block."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
TRAIN = "import sys; from gh200_lab.checkout import see_this_checkout; see_this_checkout(); from simpletuner.gh200.cli.main import main; sys.exit(main(['train', *sys.argv[1:]]))"
BLOCK = ("steps", "loss", "checkpoint", "resume")
SOON = 30.0


class Job:
    """A root of its own, whose train.py is a rank without a model."""

    def __init__(self, root: Path, saves: bool = True, steps: int = 8) -> None:
        self.root, self.output = root, root / "jobs/first/output"
        self.output.parent.mkdir(parents=True)
        shutil.copytree(ROOT / "config", root / "config")
        shutil.copy(ROOT / "tests/support/launched_trainer.py", root / "train.py")
        block = {"preflight": False, "checkpoint_on_signal": saves}
        config = {"output_dir": "jobs/first/output", "max_train_steps": steps, "gh200_optimizations": block}
        (self.output.parent / "config.json").write_text(json.dumps(config))
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, order: str = "", command: list[str] | None = None) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "RANK_ORDER": order, "CUDA_VISIBLE_DEVICES": ""}
        environment |= {"GH200_RUN_LOG": str(self.output / "gh200_steps.jsonl")} if command else {}
        # A shell starts background jobs, as scripts/run_all_tests.sh starts these tests, with SIGINT ignored.
        signals = ["env", "--default-signal=INT,HUP"]
        command = command or [sys.executable, "-c", TRAIN, "jobs/first"]
        self.processes.append(
            subprocess.Popen(
                [*signals, *command], cwd=self.root, env=environment, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            )
        )  # fmt: skip
        return self.processes[-1]

    def rank(self, process: subprocess.Popen[str]) -> int:
        """The rank's number, once it is at its third step."""
        steps = self.output / "gh200_steps.jsonl"
        wait(lambda: (steps.is_file() and '"step": 3' in steps.read_text()) or process.poll() is not None, 120)
        assert process.poll() is None, process.communicate()[0]
        return int((self.output / "rank.pid").read_text())

    def members(self) -> list[int]:
        """Every process that was started in this root and is alive."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                alive = path.joinpath("stat").read_text().rpartition(")")[2].split()[0] != "Z"
                if alive and path.joinpath("cwd").resolve() == self.root:
                    found.append(int(path.name))
            except OSError:
                continue
        return found


def wait(reached: Callable[[], Any], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.05)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    yield from ended(Job(tmp_path / "root"))


@pytest.fixture
def unsaved(tmp_path: Path) -> Iterator[Job]:
    yield from ended(Job(tmp_path / "root", saves=False))


def ended(job: Job) -> Iterator[Job]:
    yield job
    for pid in job.members():
        os.kill(pid, signal.SIGKILL)


def has_block(printed: str) -> bool:
    rows = [line.partition(" ")[0] for line in printed.rpartition("\n\n")[2].splitlines()]
    return [name for name in rows if name in BLOCK] == list(BLOCK)


def nobody_is_left(job: Job) -> None:
    wait(lambda: not job.members(), SOON)


def test_a_run_has_stages_one_bar_samples_and_the_block(job: Job) -> None:
    process = job.start("sample")
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 0, printed
    titles = [line.split(" ")[0] for line in printed.splitlines() if line]
    assert titles[:4] == ["check", "log", "load", "sample"] and titles.count("train") == 1 and has_block(printed)
    assert "validation_images/step_2.png" in printed and "8/8 loss 0.1250" in printed and len(printed.splitlines()) < 30
    assert "[INFO] step 8" in (job.output / "gh200_train.log").read_text() and "[INFO]" not in printed
    assert "0.7500 -> 0.1339" in printed and "model card  jobs/first/output/README.md" in printed
    nobody_is_left(job)


def test_a_finished_job_is_recognised_before_anything_is_started(job: Job) -> None:
    job.start().communicate(timeout=120)
    (job.root / "train.py").write_text("raise SystemExit('started again')")
    again = job.start()
    printed, _ = again.communicate(timeout=60)
    assert again.returncode == 0 and "finished" in printed and "max_train_steps" in printed and "8 of 8" in printed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_launcher_saves_and_leaves_nobody(job: Job, number: int) -> None:
    process = job.start("wait")
    job.rank(process)
    process.send_signal(number)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 85 and has_block(printed), printed
    assert "checkpoint  jobs/first/output/checkpoint-3" in printed and "gh200 train jobs/first" in printed
    nobody_is_left(job)


def test_a_signal_to_the_rank_saves_and_leaves_nobody(job: Job) -> None:
    process = job.start("wait")
    os.kill(job.rank(process), signal.SIGTERM)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 85 and (job.output / "checkpoint-3").is_dir() and has_block(printed), printed
    nobody_is_left(job)


def test_a_signal_to_the_process_group_saves_and_leaves_nobody(job: Job) -> None:
    process = job.start("wait")
    job.rank(process)
    os.killpg(process.pid, signal.SIGTERM)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 85 and (job.output / "checkpoint-3").is_dir() and has_block(printed), printed
    nobody_is_left(job)


def test_after_sigkill_to_the_launcher_the_rank_saves_and_nobody_is_left(job: Job) -> None:
    process = job.start("wait")
    job.rank(process)
    process.kill()
    process.wait(10)
    nobody_is_left(job)
    assert (job.output / "checkpoint-3/training_state.json").is_file()
    assert "launcher of this rank is gone" in (job.output / "gh200_train.log").read_text()


def test_after_sigkill_to_accelerate_the_rank_saves_and_the_block_is_shown(job: Job) -> None:
    process = job.start("wait")
    rank = job.rank(process)
    stat = Path(f"/proc/{rank}/stat").read_text().rpartition(")")[2].split()
    os.kill(int(stat[1]), signal.SIGKILL)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 85 and has_block(printed), printed
    nobody_is_left(job)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_accelerate_launch_alone_leaves_no_orphan(job: Job, number: int) -> None:
    command = ["-m", "accelerate.commands.launch", "--config_file", "config/accelerate_config_cpu.yaml", "train.py"]
    process = job.start("wait", [sys.executable, *command, "--config", "jobs/first/config.json"])
    job.rank(process)
    process.send_signal(number)
    process.wait(30)
    nobody_is_left(job)
    assert (job.output / "checkpoint-3/training_state.json").is_file()


def test_without_a_launcher_the_death_of_the_parent_changes_nothing(job: Job) -> None:
    shell = f"{sys.executable} train.py --config jobs/first/config.json & echo started; wait"
    process = job.start("wait", ["bash", "-c", shell])
    rank = job.rank(process)
    process.kill()
    process.wait(10)
    time.sleep(1.0)
    assert rank in job.members() and not (job.output / "checkpoint-3").exists()


def test_without_checkpoint_on_signal_nobody_is_left_either(unsaved: Job) -> None:
    process = unsaved.start("wait")
    unsaved.rank(process)
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM and "no checkpoint was saved" in printed, printed
    nobody_is_left(unsaved)


def test_an_exception_is_one_line_and_the_block(job: Job) -> None:
    process = job.start("fail")
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 1 and "RuntimeError: the loss is not a number" in printed, printed
    assert "Traceback" not in printed and has_block(printed) and "checkpoint  none" in printed
    nobody_is_left(job)
