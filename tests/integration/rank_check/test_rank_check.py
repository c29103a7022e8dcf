"""Ranks that were started with different configs, datasets or directories are named before training."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gh200_lab.place import ROOT
from simpletuner.gh200.rank_check import RankReport, differences

pytestmark = pytest.mark.timeout(600)
REPO = ROOT
CONFIG = {"seed": "1", "gh200_optimizations.fast_start": "true", "output_dir": '"a"'}

RANK = """
import json, os, sys
from gh200_lab.checkout import see_this_checkout
see_this_checkout()
from accelerate import Accelerator
from simpletuner.gh200.errors import GH200Error
from simpletuner.gh200.rank_check import check_ranks
rank, directory = int(os.environ["RANK"]), sys.argv[1]
accelerator = Accelerator(cpu=True)
said = {}
for name, config, datasets in (
    ("same", {"seed": 1, "output_dir": str(rank)}, [{"id": "x", "instance_data_dir": directory}]),
    ("other", {"seed": 1 + rank, "--gh200_optimizations": {"fast_start": True}}, [{"id": "x", "repeats": rank}]),
    ("directory", {}, [{"id": "x", "instance_data_dir": directory + "/gone" * rank}]),
):
    try:
        check_ranks(accelerator, config, datasets)
        said[name] = ""
    except GH200Error as error:
        said[name] = error.why
with open(f"{directory}/said.{rank}", "w") as file:
    json.dump(said, file)
accelerator.end_training()
"""

# The second one has nothing of ours in its config, and goes on to what upstream does first with all ranks.
WITHOUT_A_KEY = """
import os, sys
from gh200_lab.checkout import see_this_checkout
see_this_checkout()
from accelerate import Accelerator
from simpletuner.gh200.errors import GH200Error
from simpletuner.gh200.rank_check import check_ranks
accelerator = Accelerator(cpu=True)
if os.environ["RANK"] == "1":
    accelerator.wait_for_everyone()
    sys.exit("met the others")
try:
    check_ranks(accelerator, {"seed": 1}, [], timeout=3)
except GH200Error as error:
    with open(f"{sys.argv[1]}/said", "w") as file:
        file.write(error.why)
    raise
"""

ENDED_BY_AN_ERROR = """
import atexit, os
from gh200_lab.checkout import see_this_checkout
see_this_checkout()
from accelerate import Accelerator
from torch import distributed
from simpletuner.gh200.errors import GH200Error
from simpletuner.gh200.rank_check import check_ranks
from simpletuner.gh200.trainer import TrainerHooks
trainer = TrainerHooks()
trainer.gh200_exit_on_error = True
accelerator = Accelerator(cpu=True)
assert distributed.is_initialized()
atexit.register(lambda: print("left over" if distributed.is_initialized() else "destroyed"))
try:
    check_ranks(accelerator, {"seed": os.environ["RANK"]}, [])
except GH200Error as error:
    trainer._end_gh200(error)
"""


def rank_report(rank: int, missing: tuple[str, ...] = (), **changes: str) -> RankReport:
    return RankReport(rank, f"node{rank}", {**CONFIG, **changes}, missing)


def test_ranks_with_the_same_config_go_on() -> None:
    assert differences([rank_report(0), rank_report(1, output_dir='"b"')]) == [], "a machine may have places of its own"


def test_every_differing_key_is_named_with_rank_and_machine() -> None:
    found = differences([rank_report(0), rank_report(1), rank_report(2, seed="2", lr="0.1")])
    assert found == [
        "lr: not set for rank 0 on node0, 0.1 for rank 2 on node2",
        "seed: 1 for rank 0 on node0, 2 for rank 2 on node2",
    ]


def test_a_machine_without_the_directory_is_named() -> None:
    assert differences([rank_report(0), rank_report(1, missing=("images",))]) == [
        "rank 1 on node1 has no directory images"
    ]


def by_hand(command: list[str], variables: dict[str, str]) -> list[subprocess.CompletedProcess[str]]:
    """Two ranks without a launcher: the first one's process holds what they meet in."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    ranks = [
        subprocess.Popen(command, env=variables | place | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, **pipes)
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=300) for rank in ranks]
    return [
        subprocess.CompletedProcess(command, one.returncode, *words) for one, words in zip(ranks, said, strict=True)
    ]


def ranks(directory: Path, script: str, *, launcher: bool = True) -> list[subprocess.CompletedProcess[str]]:
    (directory / "rank.py").write_text(script)
    variables = {**os.environ, "PYTHONPATH": str(REPO), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"] if launcher else []
    command = [sys.executable, *launch, str(directory / "rank.py"), str(directory)]
    if not launcher:
        return by_hand(command, variables)
    return [subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=300)]


@pytest.mark.parametrize(
    "launcher",
    [True, pytest.param(False, marks=pytest.mark.slow(reason="a second pair of ranks"))],
    ids=["torchrun", "by hand"],
)
def test_both_of_two_real_ranks_stop_with_the_same_words(tmp_path: Path, launcher: bool) -> None:
    for done in ranks(tmp_path, RANK, launcher=launcher):
        assert done.returncode == 0, done.stderr[-3000:]
    one, other = (json.loads((tmp_path / f"said.{rank}").read_text()) for rank in range(2))
    assert one == other and one["same"] == ""
    assert "datasets.x.repeats: 0" in one["other"] and "seed: 1" in one["other"]
    assert "has no directory" in one["directory"] and "gone" in one["directory"]


def test_a_rank_without_any_key_is_named_and_nobody_waits_for_ever(tmp_path: Path) -> None:
    (done,) = ranks(tmp_path, WITHOUT_A_KEY)
    assert done.returncode == 1
    assert "rank 1 for 3 s: it was started without any GH200 setting" in (tmp_path / "said").read_text()


def test_ranks_that_end_by_an_error_leave_no_process_group_and_exit_with_2(tmp_path: Path) -> None:
    """A group that is left over makes torch abort in some of the runs; whether one is there is visible in all."""
    for done in ranks(tmp_path, ENDED_BY_AN_ERROR, launcher=False):
        assert done.returncode == 2 and done.stdout.split() == ["destroyed"], done.stderr[-3000:]
        assert "seed" in done.stderr
