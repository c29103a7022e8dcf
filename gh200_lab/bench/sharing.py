"""In-memory datasets in several processes: one copy for all ranks, what attaching takes, what a rank keeps for itself."""

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

# A process that stages a directory, or attaches to the memory of one that has, then prints what it took and waits.
_RANK = """
import io, json, os, sys, time
from contextlib import redirect_stderr
from pathlib import Path
from simpletuner.gh200.backends.ram.arena import Handle, attach
from simpletuner.gh200.backends.ram.staging import stage
from simpletuner.gh200.config.schema import InMemory
root, handle, touch = sys.argv[1:]
def private():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))
def fill():
    with redirect_stderr(io.StringIO()):
        return stage("bench", root, InMemory())
before, began = private(), time.perf_counter()
if touch == "two ids":
    from simpletuner.gh200.backends.ram.sharing import shared_arena
    both = [shared_arena(name, os.path.realpath(root), None, fill) for name in ("id0", "id1")]
    arena = both[1]
else:
    arena = attach(Handle.from_dict(json.loads(handle))) if handle else fill()
seconds = time.perf_counter() - began
if touch != "names":
    for number in range(arena.files):
        arena.read(number)
else:
    # A rank that has looked every file up and has written to one.
    for path, number in arena.names():
        assert arena.find(path) in (number, None)  # whoever came before has written to one
    row = arena.row(0)
    arena.forget_file(row.device, row.inode)
report = {"seconds": seconds, "private": private() - before, "files": arena.files, "handle": arena.handle().as_dict()}
print(json.dumps(report), flush=True)
sys.stdin.readline()
"""


class _Rank:
    def __init__(self, root: Path, touch: str, first: _Rank | None = None) -> None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "SIMPLETUNER_SKIP_TORCH": "1"}
        handle = json.dumps(first.report["handle"]) if first else ""
        command = [sys.executable, "-c", _RANK, str(root), handle, touch]
        self.process = subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdout
        self.report: dict[str, Any] = json.loads(self.process.stdout.readline())

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
    """The memory of two ids in one process, and of four ranks, against that of one."""
    two, four = [], []
    for _ in range(rounds):
        with _ranks() as ranks:
            ranks.append(_Rank(files, "bytes"))
            alone = ranks[0].shared_bytes()
            with _ranks() as more:
                more.append(_Rank(files, "two ids"))
                two.append(more[0].shared_bytes() / alone)
            ranks += [_Rank(files, "bytes", ranks[0]) for _ in range(3)]
            four.append(sum(rank.shared_bytes() for rank in ranks) / alone)
    yield Ratio(f"memory of 2 ids on one directory, times that of 1 ({megabytes} MB)", tuple(two), 1.05, at_least=False)
    yield Ratio(f"shared memory of 4 processes, times that of 1 ({megabytes} MB)", tuple(four), 1.1, at_least=False)


def attaching(files: Path, count: int, rounds: int) -> Iterator[Result]:
    """One rank has staged the directory, others come and go."""
    seconds, private = [], []
    with _ranks() as owners:
        owners.append(_Rank(files, "names"))
        for _ in range(rounds):
            with _ranks() as ranks:
                ranks.append(_Rank(files, "names", owners[0]))
                seconds.append(ranks[0].report["seconds"])
                private.append(ranks[0].report["private"] / ranks[0].report["files"])
    yield Ratio(f"attaching to a stage of {count} files, seconds", tuple(seconds), 1, at_least=False)
    yield Ratio(f"private memory per file and rank, bytes ({count} files)", tuple(private), 150, at_least=False)
