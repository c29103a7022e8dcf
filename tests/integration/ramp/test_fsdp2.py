"""FSDP2 over two gloo ranks: that it shards at all, and that windows of changing size give one rank's gradients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fsdp2_rank import WINDOWS, one_rank

from gh200_lab.place import ROOT

pytestmark = pytest.mark.timeout(300)
HERE = ROOT / "tests/support"
RANKS = 2


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    results = tmp_path_factory.mktemp("fsdp2") / "results"
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={RANKS}"]
    variables = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launch, str(HERE / "fsdp2_rank.py"), str(results)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(Path(f"{results}.{rank}").read_text()) for rank in range(RANKS)]


def test_shards_and_each_rank_holds_half(ranks: list[dict[str, Any]]) -> None:
    """Without this the rest would pass with DDP, which Accelerate gives CPU ranks by itself."""
    assert [rank["kind"] for rank in ranks] == ["FSDP", "FSDP"]
    assert all(rank["parameters"]["shards"] == 6 for rank in ranks)
    (one, other), (both, _) = ([rank["parameters"][what] for rank in ranks] for what in ("own", "all"))
    assert one + other == both and abs(one - other) <= 0.1 * both


def test_windows_have_the_gradients_of_one_rank(ranks: list[dict[str, Any]]) -> None:
    alone = one_rank(RANKS)
    assert len(alone["gradients"]) == len(WINDOWS)
    for rank in ranks:
        assert rank["gradients"] == [[pytest.approx(values, abs=1e-6) for values in row] for row in alone["gradients"]]
        assert rank["weights"] == [pytest.approx(values, abs=1e-6) for values in alone["weights"]]
    assert ranks[0]["weights"] == ranks[1]["weights"]
