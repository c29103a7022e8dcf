"""Planned runs on the simulated device, each check reported as a test of its own."""

from __future__ import annotations

import ast
import json
import sys

import pytest

from tests.cuda_sim.needed import cuda_sim_or_skip
from tests.cuda_sim.processes import HERE, ROOT, Ran, run

FILE = HERE / "checks" / "streamed_step.py"
CHECKS = [
    node.name
    for node in ast.parse(FILE.read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, dict[str, str]]:
    cuda_sim_or_skip()
    done = run(
        ["--hbm-mb", "640", "--managed-mb", "1024"],
        [sys.executable, str(HERE / "checks" / "runner.py"), str(FILE)],
        tmp_path_factory.mktemp("offload") / "report.jsonl",
        environment={"PYTHONPATH": f"{FILE.parent}:{ROOT}"},
    )
    lines = [line for line in done.output.splitlines() if line.startswith("ENDED ")]
    assert done.code == 0 and lines, (done.code, done.errors[-2000:])
    return done, json.loads(lines[0].removeprefix("ENDED "))


@pytest.mark.parametrize("check", CHECKS)
def test_streamed_step(check: str, ended: tuple[Ran, dict[str, str]]) -> None:
    assert ended[1][check] == "", ended[1][check]


def test_nothing_is_violated(ended: tuple[Ran, dict[str, str]]) -> None:
    (report,) = ended[0].reports
    assert report["violations"] == [] and report["unhandled_launches"] == 0
