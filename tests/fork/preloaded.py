"""Launchers whose ranks are forked from one process that has imported upstream: for tests with many short trainings."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tiny import FORK, VARIABLES

from gh200_lab.tiny.launch import DRIVE, Launcher

SCRIPT = Path(__file__).with_name("forked_run.py")
PATIENCE = 600.0


@dataclass(frozen=True)
class Preloaded(Launcher):
    """Watched runs on a CPU only. The fork's own ones: a process has one tree."""

    gpu: bool = False
    place: str = ""

    def command(self, tree: Path, config: Path, *arguments: str, watched: bool = False) -> list[str]:
        command = super().command(tree, config, *arguments, watched=watched)
        script = command.index(str(DRIVE))
        return [*command[:script], str(SCRIPT), self.place, *command[script:]]


@contextmanager
def preloaded(folder: Path) -> Iterator[str]:
    """Where such a process listens, for as long as it is needed."""
    place = folder / "preloaded.socket"
    launcher = Launcher(gpu=False)
    # As torchrun has it for several ranks.
    variables = launcher.environment(FORK, folder / "config.json", OMP_NUM_THREADS="1", **VARIABLES)
    command = [*launcher.command(FORK, folder / "config.json")[:1], str(SCRIPT), "serve", str(place)]
    with (folder / "preloaded.log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env=variables, stdout=log, stderr=log)
    try:
        until = time.monotonic() + PATIENCE
        while not place.exists():
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError((folder / "preloaded.log").read_text()[-3000:])
            time.sleep(0.1)
        yield str(place)
    finally:
        process.kill()
        process.wait()
