"""A folder with the tiny model, its pictures and its training runs."""

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
from .launch import Launcher
from .make import shared_model
from .pictures import make_pictures
from .run import Run, read_lines, read_log

LIMIT = 900.0
DRIVER_ORDERS = "TINY_DRIVE"


class Lab:
    """Its runs share absolute paths, so what they computed can be compared."""

    def __init__(self, folder: Path, tree: Path) -> None:
        self.folder, self.tree = folder, tree
        self.log, self.signals, self.output = folder / "run.jsonl", folder / "triggers.json", folder / "output"

    def make(self, per_aspect: int = 3) -> None:
        """The quick start's model, and its pictures: four aspect ratios, so four buckets."""
        shutil.copytree(shared_model(), self.folder / "model")
        make_pictures(self.folder / "images", per_aspect)

    def config(self, features: str = "on", **changes: Any) -> Record:
        return moved_config(self.folder, features, **changes)

    def train(self, name: str, config: Record, **how: Any) -> Run:
        """A cold run that has to end well, because only cold runs can be compared; `how` as in `run`."""
        run = self.run(name, config, cold=True, **how)
        if run.code:
            told = process.complaint(run.text)
            raise Failed(f"training ended with exit code {run.code} after {len(run.steps)} steps: {told}")
        if len(run.steps) != config["max_train_steps"]:
            told = process.complaint(run.text)
            raise Failed(f"{config['max_train_steps']} steps were asked for, {len(run.steps)} were trained: {told}")
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
            cwd=self.folder,
            environment=launcher.environment(tree, written, **more) | dict(variables or {}),
            log=self.folder / "printed.log",
            limit=limit,
            watch=while_training,
        )
        kept = self._keep(name)
        return Run(done.code, done.text, done.seconds, kept, *read_log(self.log), read_lines(kept / trace.name))

    def steps_so_far(self) -> int:
        return len(read_log(self.log)[0])

    def _prepare(self, config: Record, cold: bool, resume: str) -> Path:
        if cold:
            forget(self.folder)
        shutil.rmtree(self.output, ignore_errors=True)
        if resume:
            shutil.copytree(self.folder / "runs" / resume, self.output)
        self.output.mkdir(exist_ok=True)
        self.log.unlink(missing_ok=True)
        self.signals.write_text("{}", encoding="utf-8")
        return write_config(config, self.folder / "config.json")

    def _keep(self, name: str) -> Path:
        kept, debug = self.folder / "runs" / name, self.folder / "debug.log"
        shutil.rmtree(kept, ignore_errors=True)
        kept.parent.mkdir(exist_ok=True)
        self.output.rename(kept)
        if debug.is_file():
            debug.replace(kept / debug.name)
        return kept


def forget(folder: Path) -> None:
    """As if nothing had run here yet: caches, outputs, and the lists upstream writes beside the data."""
    for name in ("cache", "output"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for path in folder.glob("*/aspect_ratio_*"):
        path.unlink()
