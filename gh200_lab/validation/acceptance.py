"""The trainings of an acceptance run: the tiny model, in the fork, in a directory that goes however this process ends."""

from __future__ import annotations

import contextlib
import io
import math
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from simpletuner.gh200.diagnostic.acceptance.trainings import Order, Trained

from .. import process
from ..place import find_place
from ..scenario import Failed
from ..tiny.config import UNIFIED, Record
from ..tiny.images import make_images
from ..tiny.lab import Lab
from ..tiny.launch import Launcher
from ..tiny.make import make_model
from ..tiny.run import Run, weights

# Windows of the ramp from 1 to 2 over 3 micro-batches; stock gets them by hand, as upstream has no ramp.
WINDOWS = [1, 1, 1, 2]
RAMP = {
    "enable_batch_size_rampup": True,
    "initial_effective_batch_size": 1,
    "target_effective_batch_size": 2,
    "batch_rampup_steps": 3,
}
IN_RAM = {"type": "in_memory", "in_memory": {"compression": "lz4"}}
MANAGED = {"managed_memory": "all"}
FULL = {"model_type": "full", "use_ema": True, "ema_device": "accelerator", "gradient_accumulation_steps": max(WINDOWS)}
NEVER = 1000
SMALL = 8  # channels of the UNet
PARAMETERS = 950  # of the UNet per squared channel, roughly
STATE_BYTES = 8  # weight, gradient and two moments of Adam, in the bf16 these trainings have
DISK = 1 << 30
PACKAGES = ("torch", "accelerate", "diffusers", "transformers", "PIL", "safetensors")
# What an operator has set for other runs would make stock something else.
OURS = ("GH200_", "SIMPLETUNER_")
ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
# Removes the directory once the other end of its pipe is closed, which no way of dying forgets.
JANITOR = """
import os, shutil, sys, time
sys.stdin.buffer.read()
# What is being killed may still write.
for _ in range(50):
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    if not os.path.lexists(sys.argv[1]):
        break
    time.sleep(0.1)
"""


class Trainings:
    """`missing` first; a directory is made with the first training."""

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._janitor: subprocess.Popen[bytes] | None = None

    def missing(self) -> str:
        """Why nothing can be trained here; empty when it can."""
        absent = [name for name in PACKAGES if find_spec(name) is None]
        if absent:
            return f"{sys.executable} has no {', '.join(absent)}: run with .venv/bin/python (scripts/setup.sh)"
        try:
            find_place()
        except FileNotFoundError as problem:
            return "; ".join(map(str, problem.args))
        temporary = tempfile.gettempdir()
        if shutil.disk_usage(temporary).free < DISK:
            return f"{temporary} has less than {DISK >> 30} GB free: name another directory with TMPDIR"
        return ""

    def train(self, order: Order, limit: float) -> Trained:
        """Runs one training within `limit` seconds."""
        width = SMALL if order.state_bytes is None else _width(order.state_bytes)
        try:
            lab = self._lab(width)
            run = lab.run(
                order.name.replace(" ", "-").replace(",", ""),
                _config(lab, order),
                launcher=Launcher(gpu=True),
                cold=True,
                orders=_orders(order),
                variables=_variables(lab, order),
                limit=limit,
            )
        except Failed as problem:
            raise TimeoutError(str(problem)) from problem
        trained = _trained(order, run)
        shutil.rmtree(run.output, ignore_errors=True)
        return trained

    def close(self) -> None:
        """Removes the directory of the trainings."""
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
        if self._janitor is not None and self._janitor.stdin is not None:
            self._janitor.kill()
            self._janitor.stdin.close()
            self._janitor.wait()

    def _lab(self, width: int) -> Lab:
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="gh200-acceptance-"))
            command = [sys.executable, "-I", "-S", "-c", JANITOR, str(self._directory)]
            self._janitor = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, env={})
        directory = self._directory / f"width-{width}"
        if not directory.is_dir():
            parameters = PARAMETERS * width * width
            if shutil.disk_usage(self._directory).free < DISK + 3 * 4 * parameters:
                raise Failed(f"{self._directory} has no space for a model of {parameters / 1e9:.1f} billion parameters")
            (directory / "tmp").mkdir(parents=True)
            make_model(directory / "model", width)
            make_images(directory / "images", 3, [(64, 64)])
        return Lab(directory, find_place().fork)


def _width(state_bytes: int) -> int:
    """The narrowest UNet whose training state is larger."""
    return 8 * math.ceil(math.sqrt(state_bytes / STATE_BYTES / PARAMETERS) / 8)


def _config(lab: Lab, order: Order) -> Record:
    steps = len(WINDOWS) if order.state_bytes is None else 2
    config = lab.config("off", max_train_steps=steps, checkpoint_step_interval=NEVER, **FULL)
    config["datasets"][0]["repeats"] = 3
    if order.everything:
        config["datasets"][0] |= IN_RAM
        config |= {"cache_config": dict(UNIFIED), "gh200_optimizations": {"enable_uvm_hints": True, **RAMP}}
    elif order.managed:
        config["gh200_optimizations"] = dict(MANAGED)
    return config


def _orders(order: Order) -> dict[str, Any]:
    orders: dict[str, Any] = {"measure": True, "repeatable": True}
    if not order.everything:
        orders["windows"] = WINDOWS
    return orders if order.leave_bytes is None else orders | {"leave": order.leave_bytes}


def _variables(lab: Lab, order: Order) -> dict[str, str]:
    found = {name: "" for name in os.environ if name.startswith(OURS)}
    # The owner's patched build does by these keys what pools do elsewhere; for stock they would be in the way.
    found |= {name: "" for name in ALLOCATOR if os.environ.get(name) and not order.managed}
    path = [str(lab.tree), os.environ.get("PYTHONPATH", "")]
    return found | {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "TMPDIR": str(lab.directory / "tmp"),
        "ACCELERATE_MIXED_PRECISION": "bf16",
        # cuBLAS adds in a fixed order only with a workspace of its own.
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "GH200_RUN_LOG": str(lab.log),
        "SIMPLETUNER_ACCELERATE_SIGNAL_FILE": str(lab.signals),
    }


def _trained(order: Order, run: Run) -> Trained:
    updates = [entry for entry in run.trace if "weights" in entry]
    complaint = ""
    if run.code:
        # What it printed goes with the directory; the reason must not.
        with contextlib.redirect_stderr(io.StringIO()):
            complaint = process.complaint(run.text)
    return Trained(
        name=order.name,
        code=run.code,
        seconds=round(run.seconds, 1),
        losses=tuple(run.micro_losses()),
        updates=tuple(run.updates()),
        weights={} if run.code else weights(run.output),
        step_seconds=tuple(round(entry["step_seconds"], 4) for entry in updates),
        torch_bytes=max((entry["torch_bytes"] for entry in updates), default=0),
        driver_bytes=max((entry["driver_bytes"] for entry in updates), default=0),
        left_bytes=order.leave_bytes,
        out_of_memory=bool(run.code) and "CUDA out of memory" in run.text,
        complaint=complaint,
    )
