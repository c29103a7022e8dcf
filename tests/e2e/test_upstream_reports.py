"""Our reports to SimpleTuner: each fault is there in the pristine tree and gone in the fork; and the bench of the start."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tiny

from gh200_lab.place import ROOT

pytestmark = pytest.mark.timeout(900)

REPORTS = sorted(path.stem for path in (ROOT / "upstream").glob("*_*.md") if not path.stem.startswith("pytorch"))


def run(tree: Path, directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "SIMPLETUNER_SKIP_TORCH"}
    return subprocess.run(
        [sys.executable, "-W", "ignore", *words],
        cwd=directory,
        env=environment | {"PYTHONPATH": str(tree)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


NOT_MENDED = {"sampler_copies_lists"}


@pytest.mark.parametrize(
    ("tree", "there"), [(tiny.PRISTINE, set(REPORTS)), (tiny.FORK, NOT_MENDED)], ids=["pristine", "fork"]
)
def test_reports_hold_for_plain_upstream_and_not_for_the_fork(tree: Path, there: set[str], tmp_path: Path) -> None:
    done = run(tree, tmp_path, str(ROOT / "upstream" / "reproduce.py"))
    lines = re.sub(r"\x1b\[\d*m", "", done.stdout).splitlines()
    printed = dict(line.split(": ", 1) for line in lines if ": " in line)
    assert sorted(printed) == REPORTS and len(REPORTS) == 8
    assert {name for name, text in printed.items() if text != "not reproduced"} == there, printed
    assert done.returncode == 1
    for name in REPORTS:
        assert f"reproduce.py {name}" in (ROOT / "upstream" / f"{name}.md").read_text()


def test_the_report_to_pytorch_holds_on_the_simulated_device(tmp_path: Path) -> None:
    command = [str(ROOT / "tests/cuda_sim/run.sh"), sys.executable, str(ROOT / "upstream/pytorch_use_uvm_hangs.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "it hangs" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow(reason="a benchmark")
def test_the_benchmark_of_a_start_runs_in_small(tmp_path: Path) -> None:
    done = run(tiny.FORK, tmp_path, "-m", "gh200_lab.bench", "start", "--quick", "--output", str(tmp_path))
    assert done.returncode == 0, done.stdout
    assert "cold scan of 2,000 files" in done.stdout and (tmp_path / "start.json").is_file()
