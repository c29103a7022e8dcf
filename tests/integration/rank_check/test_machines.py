"""Two machines of two ranks each: every machine stages once, all go on together, and end when the cable is pulled."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from two_machines import LIMIT, Machines, missing_privilege

pytestmark = [
    pytest.mark.slow(reason="two machines in network namespaces, four ranks, and waits for a timeout"),
    pytest.mark.timeout(600),
]
RANKS, FILES = 4, 5


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    if reason := missing_privilege():
        pytest.skip(reason)
    (tmp_path / "data").mkdir()
    for number in range(FILES):
        (tmp_path / "data" / f"{number}.txt").write_bytes(bytes(1000 + number))
    made = Machines(tmp_path)
    yield made
    made.end()


def said(machines: Machines) -> list[list[dict[str, Any]]]:
    paths = [machines.directory / f"rank{rank}.jsonl" for rank in range(RANKS)]
    texts = [path.read_text() if path.exists() else "" for path in paths]
    return [[json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")] for text in texts]


def wait(machines: Machines, what: Callable[[list[list[dict[str, Any]]]], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    while not what(said(machines)):
        assert time.monotonic() < until, f"{said(machines)}\n{machines.printed()}"
        assert any(one.process.poll() is None for one in machines.both) or what(said(machines)), machines.printed()
        time.sleep(0.2)


def steps(lines: list[dict[str, Any]]) -> int:
    return sum("step" in line for line in lines)


def test_two_machines_stage_once_each_and_stop_when_one_is_cut_off(machines: Machines) -> None:
    wait(machines, lambda ranks: all(steps(lines) > 5 for lines in ranks), 300)
    firsts = [lines[0] for lines in said(machines)]
    assert [one["host"] for one in firsts] == ["machine0", "machine0", "machine1", "machine1"]
    by_machine = {
        host: sum(one["staged"] for one in firsts if one["host"] == host) for host in ("machine0", "machine1")
    }
    assert by_machine == {"machine0": 1, "machine1": 1}, "one copy per machine"
    assert all(one["files"] == FILES for one in firsts)
    assert all(line["ranks"] == RANKS for lines in said(machines) for line in lines if "step" in line)
    machines.pull_the_cable()
    pulled = time.time()
    wait(machines, lambda ranks: sum("error" in line for lines in ranks for line in lines) >= 2, 2 * LIMIT + 60)
    ends = [lines[-1] for lines in said(machines) if "error" in lines[-1]]
    assert all(end["time"] - pulled < LIMIT + 60 for end in ends), ends
    assert any("imed out" in end["error"] or "closed" in end["error"] for end in ends), ends
