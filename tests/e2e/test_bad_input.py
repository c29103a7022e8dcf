"""What goes wrong between ranks and at a shared disk, in real trainings: reported in time, by name, with nothing lost."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from preloaded import Preloaded
from tiny import Lab

from simpletuner.gh200.preemption.marker import MARKER

pytestmark = [
    pytest.mark.slow(reason="seven trainings, some of which wait for a timeout"),
    pytest.mark.timeout(1800),
]

ASKED = {"checkpoint_on_signal": True}
STEPS = {"max_train_steps": 4, "gradient_accumulation_steps": 1}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, forked: Preloaded) -> Lab:
    lab = Lab(tmp_path_factory.mktemp("bad_input"), forked)
    lab.add_dataset("squares", 8)
    return lab


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"seed": 43}, "seed: 42 for rank 0"),
        ({"gh200_optimizations": None}, "nothing was heard of rank 1 for"),
    ],
    ids=["another value", "no key of ours"],
)
def test_ranks_with_different_configs_end_before_training(
    lab: Lab, forked: Preloaded, second: Any, message: str
) -> None:
    config = lab.config("off", gh200_optimizations=ASKED, **STEPS)
    config["datasets"][0] |= {"instance_data_dir": str(lab.directory / "squares"), "repeats": 0}
    other = {name: value for name, value in (config | second).items() if value is not None and name != "datasets"}
    (lab.directory / "second.json").write_text(json.dumps(other))
    orders = {"configs": {"1": str(lab.directory / "second.json")}}
    run = lab.run("different", config, launcher=Preloaded(place=forked.place, ranks=2), orders=orders)
    assert run.code == 1 and run.trace == []
    assert message in run.text, run.text[-3000:]


def test_a_rank_that_never_comes_ends_the_others_within_the_timeout(lab: Lab) -> None:
    """Started by hand as the first of two; upstream's own variable says how long it waits."""
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29567"}
    variables = place | {"SIMPLETUNER_PROCESS_GROUP_TIMEOUT_SECONDS": "10"}
    run = lab.watched("missing", variables=variables, gh200_optimizations=ASKED, **STEPS)
    assert run.code not in (0, None) and run.trace == []
    assert "1/2" in run.text, run.text[-3000:]


class Disk:
    """A small one of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def size(self, megabytes: float, *more: str) -> subprocess.CompletedProcess[str]:
        options = ",".join((*more, f"size={int(megabytes * 1024)}k"))
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.directory)]
        return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    directory = tmp_path / "disk"
    directory.mkdir()
    disk = Disk(directory)
    tried = disk.size(64)
    if tried.returncode:
        pytest.skip(f"a disk that is full needs the privilege to mount one: {tried.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(directory)], check=True)


def test_a_full_disk_at_the_checkpoint_is_named_and_the_run_goes_on_with_free_space(lab: Lab, disk: Disk) -> None:
    asked: dict[str, Any] = {"output_dir": str(disk.directory), "gh200_optimizations": ASKED, **STEPS}
    assert lab.watched("warm-up", **STEPS | {"max_train_steps": 1}).code == 0
    whole = lab.watched("whole", **asked)
    assert whole.code == 0, whole.text[-3000:]
    for path in disk.directory.iterdir():
        subprocess.run(["rm", "-rf", str(path)], check=True)
    assert disk.size(0.06, "remount").returncode == 0
    taken = lab.watched("taken", orders={"signals": [{"name": "SIGTERM", "at": 1}]}, **asked)
    assert (
        taken.code == 1
        and "could not be written; the part that was is removed" in taken.text
        and "Traceback" not in taken.text
    )
    assert str(disk.directory) in taken.text and not (disk.directory / MARKER).exists()
    assert disk.size(64, "remount").returncode == 0
    again = lab.watched("again", resume_from_checkpoint="latest", **asked)
    assert again.code == 0, again.text[-3000:]
    assert again.trace == whole.trace
