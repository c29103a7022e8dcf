"""In-memory datasets in several processes: one copy for all that ask, what attaching takes, what a rank keeps for itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .result import Ratio, Result

# A process that meets over a folder under an id of its own, then tells what it took and holds on.
_RANK = """
import io, json, os, sys, time
from contextlib import redirect_stderr
from pathlib import Path
from simpletuner.gh200.datasets.check import forget_changed
from simpletuner.gh200.datasets.party import Party, Run
from simpletuner.gh200.datasets.places import Key
from simpletuner.gh200.datasets.rendezvous import share
from simpletuner.gh200.datasets.staging import PAGE_CACHE_THREAD, stage
from simpletuner.gh200.settings.schema import InMemory
root, name, touch = sys.argv[1:]
def private():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))
def forget(arena):
    forget_changed(arena)
def fill(told):
    with redirect_stderr(io.StringIO()):
        return stage(name, root, InMemory(), told=told)
before, began = private(), time.perf_counter()
arena = share(Key.of(root, None), Party(name, Run((name,))), fill, forget)
seconds = time.perf_counter() - began
if touch == "bytes":
    for number in range(arena.files):
        arena.read(number)
else:
    # A rank that has looked every file up and has written to one.
    for path, number in arena.names():
        assert arena.find(path) in (number, None)  # whoever came before has written to one
    row = arena.row(0)
    arena.forget_file(row.device, row.inode)
print(json.dumps({"seconds": seconds, "private": private() - before, "files": arena.files}), flush=True)
sys.stdin.readline()
"""


class _Rank:
    def __init__(self, root: Path, name: str, touch: str) -> None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "SIMPLETUNER_SKIP_TORCH": "1"}
        command = [sys.executable, "-c", _RANK, str(root), name, touch]
        self.process = subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdout
        self.told: dict[str, Any] = json.loads(self.process.stdout.readline())

    def shared_bytes(self) -> int:
        for line in Path(f"/proc/{self.process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss_Shmem:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("this kernel does not report Pss_Shmem")


@contextmanager
def _ranks() -> Iterator[list[_Rank]]:
    found: list[_Rank] = []
    try:
        yield found
    finally:
        for rank in found:
            rank.process.communicate("\n")


def sharing(files: Path, megabytes: int, rounds: int) -> Iterator[Result]:
    """Ranks of other runs, with other ids: the memory of four, and of two, against that of one."""
    two, four = [], []
    for _ in range(rounds):
        with _ranks() as ranks:
            totals = []
            for number in range(4):
                ranks.append(_Rank(files, f"id{number}", "bytes"))
                totals.append(sum(rank.shared_bytes() for rank in ranks))
            two.append(totals[1] / totals[0])
            four.append(totals[3] / totals[0])
    yield Ratio(f"memory of 2 ids on one folder, times that of 1 ({megabytes} MB)", tuple(two), 1.05, at_least=False)
    yield Ratio(f"shared memory of 4 processes, times that of 1 ({megabytes} MB)", tuple(four), 1.1, at_least=False)


def kept(files: Path, count: int, rounds: int) -> Iterator[Result]:
    """One keeps the folder, others come and go."""
    seconds, private = [], []
    with _ranks() as keepers:
        keepers.append(_Rank(files, "keeper", "names"))
        for _ in range(rounds):
            with _ranks() as ranks:
                ranks.append(_Rank(files, "run", "names"))
                seconds.append(ranks[0].told["seconds"])
                private.append(ranks[0].told["private"] / ranks[0].told["files"])
    yield Ratio(f"attaching to a kept stage of {count} files, seconds", tuple(seconds), 1, at_least=False)
    yield Ratio(f"private memory per file and rank, bytes ({count} files)", tuple(private), 150, at_least=False)
