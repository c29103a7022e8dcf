"""The launcher around real trainings of the tiny model: a signal to each of its processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gh200_lab.place import environment
from gh200_lab.tiny.images import make_images
from gh200_lab.tiny.make import shared_model
from simpletuner.gh200.summary import last_checkpoint

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [pytest.mark.fork, pytest.mark.slow(reason="a cold training each"), pytest.mark.timeout(1200)]


def variables() -> dict[str, str]:
    made = environment(ROOT / "build/fork", CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1")
    return made | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{made.get('PATH', '')}"}


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def rank_of(root: Path) -> int:
    """The process that writes the step log."""
    holders = [
        path for path in Path("/proc").glob("[0-9]*/fd/*") if opened(path) == root / "jobs/job/output/gh200_steps.jsonl"
    ]
    return int(holders[0].parts[2])


def opened(path: Path) -> Path | None:
    try:
        return path.readlink()
    except OSError:
        return None


def members(root: Path) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (path / "cwd").resolve() == root and (path / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.append(int(path.name))
        except OSError:
            continue
    return found


def to_launcher(launcher: int, rank: int) -> None:
    os.kill(launcher, signal.SIGTERM)


def to_rank(launcher: int, rank: int) -> None:
    os.kill(rank, signal.SIGTERM)


def to_group(launcher: int, rank: int) -> None:
    os.killpg(launcher, signal.SIGTERM)


def kill_launcher(launcher: int, rank: int) -> None:
    os.kill(launcher, signal.SIGKILL)


def kill_accelerate(launcher: int, rank: int) -> None:
    os.kill(parent(rank), signal.SIGKILL)


@pytest.mark.parametrize("send", [to_launcher, to_rank, to_group, kill_launcher, kill_accelerate])
def test_a_signalled_training_saves_and_nobody_is_left(tmp_path: Path, send: Callable[[int, int], None]) -> None:
    for name in ("config", "train.py"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(shared_model(), tmp_path / "model")
    make_images(tmp_path / "images", 4, [(64, 64)])
    job = ["simpletuner", "gh200", "new-job", "images", "--model", "model", "--name", "job", "--steps", "5000"]
    subprocess.run(job, cwd=tmp_path, env=variables(), check=True, capture_output=True)
    train = ["simpletuner", "gh200", "train", "jobs/job"]
    with (tmp_path / "printed").open("w") as printed:
        process = subprocess.Popen(
            train, cwd=tmp_path, env=variables(), stdout=printed, stderr=printed, start_new_session=True
        )
    steps = tmp_path / "jobs/job/output/gh200_steps.jsonl"
    end = time.monotonic() + 600
    while not (steps.is_file() and steps.read_text().count("\n") > 3):
        assert process.poll() is None and time.monotonic() < end, (tmp_path / "printed").read_text()
        time.sleep(0.1)
    send(process.pid, rank_of(tmp_path))
    end = time.monotonic() + 30
    while members(tmp_path):
        process.poll()
        assert time.monotonic() < end, members(tmp_path)
        time.sleep(0.1)
    output = tmp_path / "jobs/job/output"
    found = last_checkpoint(output)
    assert found is not None and found[0] >= 3, (tmp_path / "printed").read_text() + (
        output / "gh200_train.log"
    ).read_text()[-3000:]
    if send is not kill_launcher:
        text = (tmp_path / "printed").read_text()
        assert process.wait(10) == 85 and f"checkpoint-{found[0]}" in text and "resume " in text, text
