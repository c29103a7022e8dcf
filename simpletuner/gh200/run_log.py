"""A run's own record, one JSON line per optimizer step, for the quick start's report; on when GH200_RUN_LOG names a file."""

from __future__ import annotations

import atexit
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .state import StateHooks

VARIABLE = "GH200_RUN_LOG"
# Values of the trackers that a step's line has too, under the rest of their name.
MEASURED = "gh200/"


class RunLog:
    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8", buffering=1)
        atexit.register(self.close)

    def write(self, kind: str, **values: Any) -> None:
        self._file.write(json.dumps({"kind": kind, "time": time.time(), **values}, default=str) + "\n")

    def step(self, trainer: Any, logs: dict[str, Any]) -> None:
        config = trainer.config
        accumulation = int(config.gradient_accumulation_steps or 1)
        self.write(
            "step",
            step=int(trainer.state["global_step"]),
            epoch=int(trainer.state["current_epoch"]),
            loss=float(logs["train_loss"]),
            learning_rate=float(logs["learning_rate"]),
            resident_bytes=resident_bytes(),
            **{
                "gradient_accumulation_steps": accumulation,
                "effective_batch_size": int(config.train_batch_size) * trainer.accelerator.num_processes * accumulation,
            }
            | {key.removeprefix(MEASURED): value for key, value in logs.items() if key.startswith(MEASURED)},
        )

    def close(self) -> None:
        if not self._file.closed:
            self.write("end", runtime=StateHooks.get_gh200_runtime_config(), resident_bytes=resident_bytes())
            self._file.close()


def follow(trainer: Any) -> None:
    """Record every optimizer step of this trainer, if anybody asked for it; the main process speaks for all ranks."""
    wanted = os.environ.get(VARIABLE)
    accelerator = trainer.accelerator
    if not wanted or accelerator is None or not accelerator.is_main_process:
        return
    record = RunLog(Path(wanted))

    def write(values: dict[str, Any]) -> dict[str, Any]:
        record.step(trainer, values)
        return {**values, "gh200/resident_gb": resident_bytes() / 1e9}

    each_step(accelerator, write)


def each_step(accelerator: Any, use: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """`use` gets what upstream logs after an optimizer step; what it returns goes to the trackers."""
    original = accelerator.log

    def log(values: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        # Upstream logs other things through here too; only the training step's entry has this key.
        return original(use(values) if "train_loss" in values else values, *args, **kwargs)

    accelerator.log = log


def resident_bytes() -> int:
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
