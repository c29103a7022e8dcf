"""The directory of the golden trainings: always the same one, because SimpleTuner orders images by the hash of their paths."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tiny

from gh200_lab.tiny.launch import Launcher
from gh200_lab.tiny.run import Run

DIRECTORY = Path(f"/tmp/gh200-golden-{os.getuid()}")
# Two datasets of one bucket each; without them the tiny model's own images train, in four buckets.
DATASETS = {"first": 7, "second": 4}


@dataclass(frozen=True)
class Workplace:
    directory: Path
    lab: tiny.Lab

    def train(
        self,
        name: str,
        *,
        launcher: Launcher,
        datasets: bool = False,
        entry: dict[str, Any] | None = None,
        orders: dict[str, Any] | None = None,
        **how: Any,
    ) -> Run:
        """A training on the four buckets, or on the two datasets; every batch's files are in its trace."""
        self.lab.datasets = list(DATASETS) if datasets else []
        self.lab.entry_changes = entry or {}
        return self.lab.watched(name, launcher=launcher, orders={"batches": True, **(orders or {})}, **how)


@contextmanager
def workplace() -> Iterator[Workplace]:
    """One process at a time has it."""
    with DIRECTORY.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(DIRECTORY, ignore_errors=True)
        DIRECTORY.mkdir(mode=0o700)
        lab = tiny.Lab(DIRECTORY)
        for name, images in DATASETS.items():
            lab.add_dataset(name, images)
        try:
            yield Workplace(DIRECTORY, lab)
        finally:
            shutil.rmtree(DIRECTORY, ignore_errors=True)
