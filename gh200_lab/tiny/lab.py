"""A directory with the tiny model, its images and its training runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .. import process
from ..machine import gpus
from ..scenario import Failed
from .config import Record, moved_config, write_config
from .images import make_images
from .launch import Launcher
from .make import shared_model
from .run import Run, read_lines, read_log

LIMIT = 900.0
DRIVER_ORDERS = "TINY_DRIVE"


class Lab:
    """Its runs share absolute paths, so what they computed can be compared."""

    def __init__(self, directory: Path, tree: Path) -> None:
        self.directory, self.tree = directory, tree
        self.log, self.signals, self.output = directory / "run.jsonl", directory / "triggers.json", directory / "output"

    def make(self, per_aspect: int = 3) -> None:
        """The quick start's model, and its images: four aspect ratios, so four buckets."""
        shutil.copytree(shared_model(), self.directory / "model")
        make_images(self.directory / "images", per_aspect)

    def config(self, features: str = "on", **changes: Any) -> Record:
        """A training config of the tiny run."""
        return moved_config(self.directory, features, **changes)

    def train(self, name: str, config: Record, **how: Any) -> Run:
        """A cold run that has to end well, because only cold runs can be compared; `how` as in `run`."""
        run = self.run(name, config, cold=True, **how)
        if run.code:
            last = process.complaint(run.text)
            raise Failed(f"training ended with exit code {run.code} after {len(run.steps)} steps: {last}")
        if len(run.steps) != config["max_train_steps"]:
            last = process.complaint(run.text)
            raise Failed(f"{config['max_train_steps']} steps were asked for, {len(run.steps)} were trained: {last}")
        return run

    def run(
        self,
        name: str,
        config: Record,
        *,
        tree: Path | None = None,
        launcher: Launcher | None = None,
        cold: bool = False,
        resume: str = "",
        orders: Mapping[str, Any] | None = None,
        variables: Mapping[str, str] | None = None,
        limit: float = LIMIT,
        while_training: Callable[[int], None] = lambda group: None,
    ) -> Run:
        """Trains and keeps the output as `runs/NAME`. `resume` goes on from another run's, `orders` are the driver's."""
        # On a CPU Accelerate's launcher only sets variables, and takes ten seconds for it.
        tree, launcher = tree or self.tree, launcher or Launcher(documented=bool(gpus()))
        written = self._prepare(config, cold, resume)
        trace = self.output / "trace.jsonl"
        trace.unlink(missing_ok=True)
        more = {"GH200_RUN_LOG": str(self.log), "SIMPLETUNER_ACCELERATE_SIGNAL_FILE": str(self.signals)}
        if orders is not None:
            more[DRIVER_ORDERS] = json.dumps({"trace": str(trace), "triggers": str(self.signals), **orders})
        done = process.run(
            launcher.command(tree, written, watched=orders is not None),
            cwd=self.directory,
            environment=launcher.environment(tree, written, **more) | dict(variables or {}),
            log=self.directory / "printed.log",
            limit=limit,
            watch=while_training,
        )
        kept = self._keep(name)
        return Run(done.code, done.text, done.seconds, kept, *read_log(self.log), read_lines(kept / trace.name))

    def steps_so_far(self) -> int:
        """Optimizer steps in the log."""
        return len(read_log(self.log)[0])

    def _prepare(self, config: Record, cold: bool, resume: str) -> Path:
        if cold:
            forget(self.directory)
        shutil.rmtree(self.output, ignore_errors=True)
        if resume:
            shutil.copytree(self.directory / "runs" / resume, self.output)
        self.output.mkdir(exist_ok=True)
        self.log.unlink(missing_ok=True)
        self.signals.write_text("{}", encoding="utf-8")
        return write_config(config, self.directory / "config.json")

    def _keep(self, name: str) -> Path:
        kept, debug = self.directory / "runs" / name, self.directory / "debug.log"
        shutil.rmtree(kept, ignore_errors=True)
        kept.parent.mkdir(exist_ok=True)
        self.output.rename(kept)
        if debug.is_file():
            debug.replace(kept / debug.name)
        return kept


def forget(directory: Path) -> None:
    """As if nothing had run here yet: caches, outputs, and the lists upstream writes beside the data."""
    for name in ("cache", "output"):
        shutil.rmtree(directory / name, ignore_errors=True)
    for path in directory.glob("*/aspect_ratio_*"):
        path.unlink()
