"""Folders as people bring them, made into jobs by the script and trained by the very line it printed."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tiny
from PIL import Image

from gh200_lab.place import environment
from gh200_lab.tiny.make import make_family, shared_model
from gh200_lab.tiny.pictures import make_pictures

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]
SLOW = pytest.mark.slow


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A folder like the repository's root, so that no test leaves a job in the real one."""
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


def trained(root: Path, *words: str) -> dict[str, object]:
    """Makes the job, runs the line it printed, and looks at the weights."""
    done = new_job(root, *words, "--steps", "3", "--checkpoint-every", "3")
    assert done.returncode == 0, done.stderr
    line = shlex.split(done.stdout.strip().splitlines()[-1])
    # On a CPU Accelerate's launcher only sets variables; the first test runs it, the others save its ten seconds.
    run = subprocess.run(line, cwd=root, env=variables(), capture_output=True, text=True)
    assert run.returncode == 0, (run.stdout + run.stderr)[-4000:]
    assert list((root / "jobs/job/output").rglob("pytorch_lora_weights.safetensors")), run.stdout[-2000:]
    return dict(json.loads((root / "jobs/job/config.json").read_text(encoding="utf-8")))


def three(folder: Path) -> None:
    make_pictures(folder, 1, [(64, 64), (128, 64), (64, 128)])


def forty(folder: Path) -> None:
    for number, aspect in enumerate(((64, 64), (160, 64), (64, 160))):
        make_pictures(folder, (20, 15, 5)[number], [aspect], first=100 * number)


def sixty_shapes(folder: Path) -> None:
    for number in range(500):
        make_pictures(folder, 1, [(64 + 8 * (number % 60), 128)], first=number)


def mixed(folder: Path) -> None:
    """Everything at once that a phone, a camera and a disk full of years leave in a folder."""
    make_pictures(folder / "Ünter ordner" / "b", 4, [(64, 64)])
    for name, mode in (
        ("ink.jpg", "CMYK"),
        ("deep.png", "I;16"),
        ("moving.gif", "P"),
        ("grey.png", "L"),
        ("clear.png", "RGBA"),
    ):
        Image.new(mode, (96, 64)).save(folder / name)
        (folder / name).with_suffix(".txt").write_text(name)
    (folder / "empty.jpg").touch()
    (folder / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n rest")
    (folder / "phone.heic").write_bytes(b"\0" * 64)
    (folder / "clip.mp4").write_bytes(b"\0" * 64)


def uncaptioned(folder: Path) -> None:
    make_pictures(folder, 4, [(64, 64)])
    for path in folder.glob("*.txt"):
        path.unlink()


def table(folder: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    uncaptioned(folder)
    names = [path.name for path in sorted(folder.iterdir())]
    parquet.write_table(
        pyarrow.table({"file_name": names, "caption": [f"about {n}" for n in names]}), folder / "c.parquet"
    )


@pytest.mark.parametrize(
    "make",
    [forty, mixed, *(pytest.param(make, marks=SLOW) for make in (three, sixty_shapes, uncaptioned, table))],
    ids=lambda make: make.__name__,
)
def test_new_job_trains_by_the_line_it_printed(root: Path, make: Callable[[Path], None]) -> None:
    make(root / "my pictures")
    before = sorted(path.relative_to(root) for path in (root / "my pictures").rglob("*"))
    config = trained(root, "my pictures", "--model", "model")
    assert config["enable_multiprocessing"] is True
    left = sorted(
        path.relative_to(root) for path in (root / "my pictures").rglob("*") if "aspect_ratio" not in path.name
    )
    assert left == before


@SLOW
@pytest.mark.parametrize("adapter", ["lora", "lycoris"])
def test_new_job_trains_a_transformer_family(root: Path, adapter: str) -> None:
    make_family("sd3", root / "sd3")
    make_pictures(root / "images", 4, [(64, 64)])
    done = new_job(root, "images", "--model", "sd3", "--adapter", adapter, "--steps", "3", "--checkpoint-every", "3")
    assert done.returncode == 0 and "family sd3" in done.stdout, done.stderr
    run = subprocess.run(
        shlex.split(done.stdout.strip().splitlines()[-1]), cwd=root, env=variables(), capture_output=True, text=True
    )
    assert run.returncode == 0, (run.stdout + run.stderr)[-4000:]
    assert list((root / "jobs/job/output").glob("pytorch_lora*.safetensors"))


def test_new_job_writes_only_keys_upstream_has(root: Path) -> None:
    """Preflight is part of it, with the real parser's keys; a training that could not start is refused by it."""
    forty(root / "images")
    assert new_job(root, "images", "--model", "model").returncode == 0
    path = root / "jobs/job/config.json"
    config = json.loads(path.read_text())
    config |= {"optimizer": "adamww", "gh200_optimizations": {"target_effective_batch_size": 64}}
    path.write_text(json.dumps(config))
    command = [sys.executable, "train.py", "--config", "jobs/job/config.json"]
    done = subprocess.run(command, cwd=root, env=variables(), capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr[-2000:]
    for words in ("adamww", "gh200_optimizations.target_effective_batch_size", "bucket"):
        assert words in done.stderr
