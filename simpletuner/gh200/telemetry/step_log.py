"""One JSON line per optimizer step, to compare runs by, with or without GH200 settings; on when GH200_RUN_LOG names a file."""

from __future__ import annotations

import atexit
import json
import os
import time
from pathlib import Path
from typing import Any

from ..config.dataset_file import micro_batch_size
from ..memory.process import process_memory
from ..state import StateHooks
from ..trackers import PREFIX, each_step

VARIABLE = "GH200_RUN_LOG"


class RunLog:
    """The file, closed at exit."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8", buffering=1)
        atexit.register(self.close)

    def write(self, kind: str, **values: Any) -> None:
        """Append one line."""
        entry = {"kind": kind, "time": time.time(), **values, "resident_bytes": process_memory().resident}
        self._file.write(json.dumps(entry, default=str) + "\n")

    def step(self, trainer: Any, logs: dict[str, Any]) -> None:
        """Append the values of an optimizer step."""
        config = trainer.config
        accumulation = int(config.gradient_accumulation_steps or 1)
        size = micro_batch_size(vars(config), int(config.train_batch_size))
        self.write(
            "step",
            step=int(trainer.state["global_step"]),
            epoch=int(trainer.state["current_epoch"]),
            loss=float(logs["train_loss"]),
            learning_rate=float(logs["learning_rate"]),
            **{
                "gradient_accumulation_steps": accumulation,
                "effective_batch_size": None
                if size is None
                else size * trainer.accelerator.num_processes * accumulation,
            }
            | {key.removeprefix(PREFIX): value for key, value in logs.items() if key.startswith(PREFIX)},
        )

    def close(self) -> None:
        """Append the last line."""
        if not self._file.closed:
            self.write("end", runtime=StateHooks.get_gh200_runtime_config())
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
        return values

    each_step(accelerator, write)
