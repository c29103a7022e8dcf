"""An operator's own job, timed: its config with a few keys changed, trained from the directory it is always started in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from simpletuner.gh200.config.config_file import read_config_file
from simpletuner.gh200.config.keys import plain_key

from .. import process
from ..place import Place
from ..scenario import Failed
from ..tiny.config import Record
from ..tiny.launch import Launcher
from ..tiny.run import Run, read_log

# What a baseline leaves out: images, checkpoints and uploads are no steps, and a resumed run has fewer of them.
_REMOVED = (
    "resume_from_checkpoint", "validation_prompt", "validation_prompt_library", "webhook_config", "$schema",
    "checkpointing_steps", "checkpointing_rolling_steps", "checkpoint_epoch_interval",
)  # fmt: skip


class OwnJob:
    """`digest` is the config's own, so that two baselines of different jobs are not compared in silence."""

    def __init__(self, path: Path, place: Place, directory: Path) -> None:
        self.path, self.place, self.directory = path, place, directory
        self.config = {plain_key(key): value for key, value in read_config_file(path).items()}
        self.log = directory / "run.jsonl"

    @property
    def label(self) -> str:
        """Name and hash of the config."""
        digest = hashlib.sha256(json.dumps(self.config, sort_keys=True, default=str).encode()).hexdigest()[:12]
        return f"{self.path.name} {digest}"

    def steps_so_far(self) -> int:
        """Optimizer steps in the log."""
        return len(read_log(self.log)[0])

    def train(self, steps: int, watch: Callable[[int], None]) -> Run:
        """Train so many steps."""
        output = self.directory / "output"
        output.mkdir()
        written = self.directory / "config.json"
        written.write_text(json.dumps(self._changed(steps, output), indent=1, default=str), encoding="utf-8")
        launcher = Launcher(documented=True)
        done = process.run(
            launcher.command(self.place.fork, written.absolute()),
            cwd=Path.cwd(),
            environment=launcher.environment(self.place.fork, written, GH200_RUN_LOG=str(self.log.absolute())),
            log=self.directory / "printed.log",
            limit=3600 + 60.0 * steps,
            watch=watch,
        )
        run = Run(done.code, done.text, done.seconds, output, *read_log(self.log), [])
        if run.code or len(run.steps) != steps:
            raise Failed(
                f"{self.path} ended with exit code {run.code} after {len(run.steps)} of {steps} steps: {done.complaint()}"
            )
        return run

    def _changed(self, steps: int, output: Path) -> Record:
        kept = {key: value for key, value in self.config.items() if key not in _REMOVED}
        return kept | {
            "max_train_steps": steps,
            "num_train_epochs": 0,
            "checkpoint_step_interval": steps + 1,
            "output_dir": str(output.absolute()),
            "validation_disable": True,
            "report_to": "none",
            "push_to_hub": False,
        }
