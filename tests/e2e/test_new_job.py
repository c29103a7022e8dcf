"""Directories as people bring them, made into jobs by the script and trained by the very line it printed."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tiny
from PIL import Image
from preloaded import Preloaded

from gh200_lab.place import environment
from gh200_lab.tiny.images import make_images
from gh200_lab.tiny.make import make_family, shared_model

pytestmark = pytest.mark.timeout(1800)
MORE = pytest.mark.slow(reason="a cold training each")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A directory like the repository's root, so that no test leaves a job in the real one."""
    for name in ("config", "train.py"):
        (tmp_path / name).symlink_to(tiny.ROOT / name)
    shutil.copytree(shared_model(), tmp_path / "model")
    yield tmp_path


def variables() -> dict[str, str]:
    made = environment(tiny.FORK, CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1")
    return made | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{made.get('PATH', '')}"}


def new_job(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "simpletuner.gh200.new_job", *words, "--root", str(root), "--name", "job"]
    return subprocess.run(command, cwd=root, env=variables(), capture_output=True, text=True)


def trained(root: Path, *words: str, by_simpletuner: bool = False) -> dict[str, object]:
    """Makes the job, runs the line it printed or `simpletuner train` instead, and looks at the weights."""
    done = new_job(root, *words, "--steps", "3", "--checkpoint-every", "3")
    assert done.returncode == 0, done.stderr
    line = shlex.split(done.stdout.strip().splitlines()[-1])
    if by_simpletuner:
        line = ["simpletuner", "train", "--config", f"{line[-1]}/config.json"]
    run = subprocess.run(line, cwd=root, env=variables(), capture_output=True, text=True)
    assert run.returncode == 0, (run.stdout + run.stderr)[-4000:]
    assert list((root / "jobs/job/output").rglob("pytorch_lora_weights.safetensors")), run.stdout[-2000:]
    # Upstream drops in silence: every image that is reported as used has a latent of its own.
    images = int(done.stdout.split()[0])
    assert len(list((root / "jobs/job/cache/vae").rglob("*.pt"))) == images
    return dict(json.loads((root / "jobs/job/config.json").read_text(encoding="utf-8")))


def three(directory: Path) -> None:
    make_images(directory, 1, [(64, 64), (128, 64), (64, 128)])


def forty(directory: Path) -> None:
    for number, aspect in enumerate(((64, 64), (160, 64), (64, 160))):
        make_images(directory, (20, 15, 5)[number], [aspect], first=100 * number)


def sixty_shapes(directory: Path) -> None:
    for number in range(500):
        make_images(directory, 1, [(64 + 8 * (number % 60), 128)], first=number)


def mixed(directory: Path) -> None:
    """Everything at once that a phone, a camera and a disk full of years leave in a directory."""
    make_images(directory / "Ünter ordner" / "b", 4, [(64, 64)])
    for name, mode in (
        ("ink.jpg", "CMYK"),
        ("deep.png", "I;16"),
        ("moving.gif", "P"),
        ("grey.png", "L"),
        ("clear.png", "RGBA"),
    ):
        Image.new(mode, (96, 64)).save(directory / name)
        (directory / name).with_suffix(".txt").write_text(name)
    (directory / "empty.jpg").touch()
    (directory / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n rest")
    (directory / "phone.heic").write_bytes(b"\0" * 64)
    (directory / "clip.mp4").write_bytes(b"\0" * 64)


def namesakes(directory: Path) -> None:
    make_images(directory, 3, [(64, 64)])
    for path in sorted(directory.glob("*.png"))[:2]:
        Image.new("RGB", (128, 64)).save(path.with_suffix(".jpg"))


def uncaptioned(directory: Path) -> None:
    make_images(directory, 4, [(64, 64)])
    for path in directory.glob("*.txt"):
        path.unlink()


def table(directory: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    uncaptioned(directory)
    names = [path.name for path in sorted(directory.iterdir())]
    parquet.write_table(
        pyarrow.table({"file_name": names, "caption": [f"about {n}" for n in names]}), directory / "c.parquet"
    )


@pytest.mark.parametrize(
    "make",
    [forty, *(pytest.param(make, marks=MORE) for make in (three, sixty_shapes, namesakes, uncaptioned, table))],
    ids=lambda make: make.__name__,
)
def test_a_job_trains_by_the_printed_line(root: Path, make: Callable[[Path], None]) -> None:
    check_trains(root, make)


def test_a_job_trains_by_simpletuner_train(root: Path) -> None:
    check_trains(root, mixed, by_simpletuner=True)


def check_trains(root: Path, make: Callable[[Path], None], by_simpletuner: bool = False) -> None:
    make(root / "my images")
    before = sorted(path.relative_to(root) for path in (root / "my images").rglob("*"))
    config = trained(root, "my images", "--model", "model", by_simpletuner=by_simpletuner)
    assert config["enable_multiprocessing"] is True
    left = sorted(path.relative_to(root) for path in (root / "my images").rglob("*") if "aspect_ratio" not in path.name)
    assert left == before


@pytest.mark.slow(reason="a cold training")
def test_a_job_trains_a_transformer_family(root: Path) -> None:
    make_family("sd3", root / "sd3")
    make_images(root / "images", 4, [(64, 64)])
    done = new_job(root, "images", "--model", "sd3", "--steps", "3", "--checkpoint-every", "3")
    assert done.returncode == 0 and "family sd3" in done.stdout, done.stderr
    run = subprocess.run(
        shlex.split(done.stdout.strip().splitlines()[-1]), cwd=root, env=variables(), capture_output=True, text=True
    )
    assert run.returncode == 0, (run.stdout + run.stderr)[-4000:]
    assert list((root / "jobs/job/output").glob("pytorch_lora*.safetensors"))


def test_writes_only_keys_upstream_has(root: Path, forked: Preloaded) -> None:
    """Preflight is part of it, with the real parser's keys; a training that could not start is rejected by it."""
    forty(root / "images")
    assert new_job(root, "images", "--model", "model").returncode == 0
    path = root / "jobs/job/config.json"
    config = json.loads(path.read_text())
    config |= {"optimizer": "adamww", "gh200_optimizations": {"target_effective_batch_size": 64}}
    path.write_text(json.dumps(config))
    command = [sys.executable, *forked.forked("train.py", "--config", "jobs/job/config.json")]
    done = subprocess.run(command, cwd=root, env=variables(), capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr[-2000:]
    for words in ("adamww", "gh200_optimizations.target_effective_batch_size", "bucket"):
        assert words in done.stderr


def started(root: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "simpletuner.gh200.new_job", *words, "--model", "model", "--root", str(root)]
    return subprocess.Popen(
        command, cwd=root, env=variables(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def test_concurrent_commands_make_one_job_of_a_name(root: Path) -> None:
    forty(root / "images")
    ran = [started(root, "images", "--name", "same") for _ in range(3)] + [started(root, "images") for _ in range(2)]
    messages = [process.communicate()[1] for process in ran]
    assert sorted(process.returncode for process in ran) == [0, 0, 0, 2, 2], messages
    assert sum("There is a job of that name; nothing of it was changed." in text for text in messages) == 2, messages
    assert sorted(path.name for path in (root / "jobs").iterdir()) == ["images", "images-2", "same"]
    for path in (root / "jobs").iterdir():
        assert json.loads((path / "config.json").read_text())["output_dir"] == f"jobs/{path.name}/output"


@pytest.mark.slow(reason="kills 36 processes, each at another moment")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_an_ended_command_makes_a_whole_job_or_none(root: Path, number: signal.Signals) -> None:
    make_images(root / "images", 200, [(64, 64)])
    (root / "images/broken.png").write_text("links are made")
    for pause in range(12):
        process = started(root, "images", "--name", "job")
        time.sleep(0.3 * pause)
        process.send_signal(number)
        message = process.communicate()[1]
        assert "Traceback" not in message or "KeyboardInterrupt" in message.splitlines()[-1], message
        if (job := root / "jobs/job").exists():
            assert len(list((job / "images").glob("*.png"))) == 200 and json.loads((job / "config.json").read_text())
            shutil.rmtree(job)
        if number != signal.SIGKILL:
            assert not (root / "jobs").exists() or not list((root / "jobs").iterdir())


@pytest.mark.slow(reason="two cold trainings and a rejected one")
def test_a_new_job_that_runs_is_not_started_again_beside_itself(root: Path) -> None:
    make_images(root / "images", 4, [(64, 64)])
    assert new_job(root, "images", "--model", "model", "--steps", "4000", "--checkpoint-every", "2").returncode == 0
    line = [sys.executable, "train.py", "--config", "jobs/job/config.json"]
    output = root / "jobs/job/output"
    with (root / "first.log").open("w") as log:
        first = subprocess.Popen(line, cwd=root, env=variables(), stdout=log, stderr=subprocess.STDOUT)
        try:
            while not (output / "checkpoint-4").exists() and first.poll() is None:
                time.sleep(0.2)
            second = subprocess.run(line, cwd=root, env=variables(), capture_output=True, text=True)
            assert first.poll() is None, (root / "first.log").read_text()[-3000:]
        finally:
            first.kill()
            first.wait()
    assert second.returncode == 2 and "Another run is at work in this output directory." in second.stderr
    assert f"process {first.pid} holds it" in second.stderr and "Traceback" not in second.stderr
    # A killed one holds nothing, and the next goes on from its last checkpoint.
    last = max(int(path.name.partition("-")[2]) for path in output.glob("checkpoint-*"))
    again = subprocess.run(
        [*line, f"--max_train_steps={last + 2}"], cwd=root, env=variables(), capture_output=True, text=True
    )
    assert again.returncode == 0, (again.stdout + again.stderr)[-3000:]
    assert (output / "pytorch_lora_weights.safetensors").is_file()


@pytest.mark.slow(reason="two cold trainings of 20 steps")
def test_a_job_is_timed_as_a_baseline(root: Path) -> None:
    make_images(root / "images", 4, [(64, 64)])
    assert new_job(root, "images", "--model", "model", "--steps", "40").returncode == 0
    script = ["bash", str(tiny.ROOT / "scripts/capture_baseline.sh"), "--config", "jobs/job/config.json"]
    script += ["--steps", "20", "--output", "kept"]
    for more in ([], ["--compare", "kept"]):
        done = subprocess.run(
            [*script, *more], cwd=root, env=variables() | {"GH200_FORK": str(tiny.FORK)}, capture_output=True, text=True
        )
        assert done.returncode == ("time: worse" in done.stdout), done.stdout + done.stderr
    assert "config.json" in json.loads((root / "kept/baseline.json").read_text())["config"]
    (compared,) = (root / "kept/compared").glob("*/baseline.json")
    found = json.loads(compared.read_text())["comparison"]
    assert {part["name"] for part in found["memory"]} == {"GPU memory", "RAM"}
    assert not (root / "jobs/job/output").exists()
