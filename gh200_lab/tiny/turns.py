"""A training run in a process of its own that takes one optimizer step on each request."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Self

from .lab import DRIVER_ORDERS
from .launch import Launcher


class Trainer:
    """The process, and its pipe."""

    def __init__(self, tree: Path, config: Path) -> None:
        self._printed = config.with_name("printed.log")
        steps, said = os.pipe()
        turn, self._turns = os.pipe()
        launcher = Launcher()
        variables = {
            DRIVER_ORDERS: json.dumps({"said": said, "turn": turn}),
            # Threads that wait must not spin while it is another trainer's turn.
            "OMP_WAIT_POLICY": "PASSIVE",
        }
        with self._printed.open("w") as printed:
            self._process = subprocess.Popen(
                launcher.command(tree, config, watched=True),
                cwd=config.parent,
                env=launcher.environment(tree, config, **variables),
                stdout=printed,
                stderr=printed,
                pass_fds=(said, turn),
            )
        os.close(said)
        os.close(turn)
        self._steps = os.fdopen(steps)
        self._read()

    def step(self) -> float:
        """Seconds of the next step."""
        # A trainer that is gone is reported by the read that follows.
        with suppress(BrokenPipeError):
            os.write(self._turns, b".")
        return self._read()

    def _read(self) -> float:
        if line := self._steps.readline():
            return float(line)
        code = self._process.wait()
        raise RuntimeError(f"training ended with exit code {code}:\n{self._printed.read_text()[-3000:]}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._steps.close()
        os.close(self._turns)
