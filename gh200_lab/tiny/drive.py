"""Runs a train.py unchanged and watches it from outside: losses, weights after each update, kills, hand-set windows.

What to do comes as JSON in TINY_DRIVE: `trace` (file to write), `kill_at` (SIGKILL before this micro-batch, from 0),
`windows` (accumulation steps of each update, set by hand), `ask` (micro-batch number -> `manual_validation` or
`manual_checkpoint`, asked for through the trigger file just before it).
"""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import signal
import sys
from typing import Any

import torch
from accelerate import Accelerator
from torch.optim.optimizer import register_optimizer_step_post_hook

ORDERS: dict[str, Any] = json.loads(os.environ["TINY_DRIVE"])
accumulate, backward = Accelerator.accumulate, Accelerator.backward
begun = 0


def note(**entry: Any) -> None:
    with open(ORDERS["trace"], "a", encoding="utf-8") as trace:
        trace.write(json.dumps(entry) + "\n")


def set_window_by_hand(accelerator: Accelerator) -> None:
    first = 0
    for size in ORDERS["windows"]:
        if first == begun:
            accelerator.gradient_accumulation_steps = size
            accelerator.step = 0
        first += size


def watched_accumulate(self: Accelerator, *models: Any) -> Any:
    global begun
    if begun == ORDERS.get("kill_at"):
        os.kill(os.getpid(), signal.SIGKILL)
    if "windows" in ORDERS:
        set_window_by_hand(self)
    if str(begun) in ORDERS.get("ask", {}):
        with open(ORDERS["triggers"], "w", encoding="utf-8") as triggers:
            json.dump({ORDERS["ask"][str(begun)]: 1}, triggers)
    begun += 1
    return accumulate(self, *models)


def watched_backward(self: Accelerator, loss: torch.Tensor, **kwargs: Any) -> None:
    note(loss=loss.item().hex(), accumulation=self.gradient_accumulation_steps)
    backward(self, loss, **kwargs)


def after_update(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    digest = hashlib.sha256()
    for group in optimizer.param_groups:
        for weight in group["params"]:
            digest.update(weight.detach().float().numpy().tobytes())
    note(weights=digest.hexdigest())


if __name__ == "__main__":
    Accelerator.accumulate, Accelerator.backward = watched_accumulate, watched_backward
    register_optimizer_step_post_hook(after_update)
    if not torch.cuda.is_available():
        # Upstream pins wherever MPS is absent and fails here; the fork asks first. For both the same: no pinning.
        torch.Tensor.pin_memory = lambda self, *_: self
    sys.argv = sys.argv[1:]
    sys.path.pop(0)
    runpy.run_path(sys.argv[0], run_name="__main__")
