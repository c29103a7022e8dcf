"""Runs a train.py unchanged and lets its noise meter work in every second window: CPU seconds of each, to a file.

The file is named by GH200_RAMP_DRIVE; a line has `on` or `off` and the seconds of all threads of this process.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

VARIABLE = "GH200_RAMP_DRIVE"


class EverySecondWindow:
    """What belongs to a window's step, its entry in the trackers too, is counted with the next one on both sides."""

    def __init__(self, target: Path) -> None:
        self._file = target.open("w", encoding="utf-8", buffering=1)
        self._meter: Any = None
        self._on, self._began = True, time.process_time()

    def install(self) -> None:
        """Hook the optimizer step."""
        from simpletuner.gh200.ramp.noise_meter import NoiseMeter

        made, found = NoiseMeter.__init__, self

        def remember(meter: Any, trainer: Any) -> None:
            made(meter, trainer)
            found._meter = meter

        NoiseMeter.__init__ = remember  # type: ignore[method-assign, assignment]
        register_optimizer_step_post_hook(self.after_update)

    def after_update(self, *_: Any) -> None:
        """Write the CPU time of an update."""
        self._file.write(f"{'on' if self._on else 'off'} {time.process_time() - self._began}\n")
        self._on = not self._on
        meter = self._meter
        if self._on:
            # A run attaches once, not in every second window: this is not what a step costs.
            meter.attach()
            meter.trainer._gh200_noise = meter
            del meter.tracker_values
        else:
            meter.detach()
            meter.trainer._gh200_noise, meter.tracker_values = None, dict
        self._began = time.process_time()


def main() -> None:
    """Train with the recorder installed."""
    EverySecondWindow(Path(os.environ[VARIABLE])).install()
    if not torch.cuda.is_available():
        # As in the tiny run's own driver: upstream pins wherever MPS is absent.
        torch.Tensor.pin_memory = lambda self, *_: self  # type: ignore[method-assign]
    sys.argv = sys.argv[1:]
    sys.path.pop(0)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
