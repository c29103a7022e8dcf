"""Trainings forked from one server process that has imported SimpleTuner: the imports are most of a tiny run's time.

For tests that need no process of their own. Those that do are listed in tests/README.md."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tiny import FORK, VARIABLES

from gh200_lab.tiny.launch import Launcher

SCRIPT = Path(__file__).with_name("forked_run.py")
PATIENCE = 600.0


@dataclass(frozen=True)
class Preloaded(Launcher):
    """On a CPU only, and of the fork only: a process imports one tree. There is no `debug.log` beside such a run: the
    server opened it when it imported SimpleTuner.
    """

    gpu: bool = False
    place: str = ""

    def command(self, tree: Path, config: Path, *arguments: str, watched: bool = False) -> list[str]:
        if tree != FORK:
            raise ValueError(f"the server has imported {FORK}, and cannot train in {tree}")
        command = super().command(tree, config, *arguments, watched=watched)
        script = next(number for number, word in enumerate(command) if word.endswith(".py"))
        return [*command[:script], *self.forked(*command[script:])]

    def forked(self, script: str, *arguments: str) -> list[str]:
        """What follows `python` to run a script in a fork of the server."""
        return [str(SCRIPT), self.place, script, *arguments]


@contextmanager
def preloaded(directory: Path) -> Iterator[str]:
    """Where such a process listens, for as long as it is needed."""
    place = directory / "preloaded.socket"
    launcher = Launcher(gpu=False)
    variables = launcher.environment(FORK, directory / "config.json", **VARIABLES)
    command = [*launcher.command(FORK, directory / "config.json")[:1], str(SCRIPT), "serve", str(place)]
    with (directory / "preloaded.log").open("w") as log:
        process = subprocess.Popen(command, cwd=directory, env=variables, stdout=log, stderr=log)
    try:
        until = time.monotonic() + PATIENCE
        while not place.exists():
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError((directory / "preloaded.log").read_text()[-3000:])
            time.sleep(0.1)
        yield str(place)
    finally:
        process.kill()
        process.wait()
