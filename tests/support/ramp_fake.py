"""A fake trainer around a real Accelerator: the few methods the ramp binds to, and a plain accumulation loop."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState

from simpletuner.gh200.ramp import apply as ramp_apply
from simpletuner.gh200.trainer import TrainerHooks

NOISY = 60
# torch 2.14 may abort at interpreter exit after a gloo process group was used, even a destroyed one.
_IN_THIS_CHECKOUT = """
import os, runpy, sys
from gh200_lab.checkout import see_this_checkout

see_this_checkout()
runpy.run_path(sys.argv[1], run_name="__main__")
sys.stdout.flush()
os._exit(0)
"""


class EpochSteps:
    """Replaces the tracker that keeps the step within the epoch."""

    epoch_step = 0

    @classmethod
    def set_epoch_step(cls, step: int) -> None:
        cls.epoch_step = step


@contextmanager
def fake_state_tracker() -> Iterator[None]:
    """The one upstream module the ramp imports, for as long as it is wanted."""
    name = "simpletuner.helpers.training.state_tracker"
    module = ModuleType(name)
    module.StateTracker = EpochSteps
    with pytest.MonkeyPatch.context() as patching:
        patching.setitem(sys.modules, name, module)
        yield


def optimizations(**changes: Any) -> SimpleNamespace:
    asked = {
        "enable_batch_size_rampup": True,
        "initial_effective_batch_size": None,
        "target_effective_batch_size": None,
        "batch_rampup_steps": 40,
        "batch_rampup_shape": "quadratic",
        "batch_rampup_unit": "micro_batches",
        "batch_rampup_table": None,
        "batch_rampup_lr_scaling": "target",
        "batch_rampup_beta2": "fixed",
        "measure_gradient_noise_scale": changes.get("batch_rampup_shape") == "measured",
        "accept_changed_ramp": False,
    }
    return SimpleNamespace(**{**asked, **changes})


class Validation:
    """Validates where upstream does: where the micro-step is a multiple of the accumulation steps."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def should_perform_intermediary_validation(
        self, step: int, prompts: object, kind: str, *, epoch_end: bool = False
    ) -> bool:
        return step % self.trainer.config.gradient_accumulation_steps == 0

    def _epoch_relative_step(self, steps_per_epoch: int) -> int:
        return -1


class Model(torch.nn.Module):
    def __init__(self, size: int = 5) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, size, dtype=torch.float64))

    def forward(self, row: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.weight @ row).square()


class Trainer(TrainerHooks):
    """One weight vector in float64, one loss per micro-batch, and the loop of any trainer that uses Accelerate."""

    def __init__(self, batches_per_epoch: int = 10, **config: Any) -> None:
        # Accelerate keeps its state per process; each trainer starts with a fresh one.
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        self.accelerator = Accelerator(cpu=True)
        defaults = {
            "train_batch_size": 1,
            "gradient_accumulation_steps": 1,
            "max_train_steps": 0,
            "num_train_epochs": 1,
            "lr_scale": False,
            "lr_scale_sqrt": False,
            "dataloader_prefetch": False,
            "total_num_batches": batches_per_epoch,
        }
        self.config = SimpleNamespace(**{**defaults, **config})
        self.batches_per_epoch = batches_per_epoch
        self.state = {"global_step": 0, "current_epoch": 1}
        self.validation: Validation | None = Validation(self)
        self.split_by: list[int] = []
        self.logged: list[dict[str, Any]] = []
        self.model: Any = Model()
        self.accelerator.log = lambda values, step=None: self.logged.append(values)

    def prepare(self, rate: float = 0.05, optimizer_class: Callable[..., Any] = torch.optim.SGD) -> None:
        optimizer = optimizer_class(self.model.parameters(), lr=rate)
        self.model, self.optimizer = self.accelerator.prepare(self.model, optimizer)

    def build(self, **changes: Any) -> Any:
        return ramp_apply.build_ramp(self, SimpleNamespace(optimizations=optimizations(**changes)))

    def weight(self) -> torch.Tensor:
        return self.accelerator.unwrap_model(self.model).weight

    def micro_batch(
        self, step: int, row: torch.Tensor, *, batch: object = None, probe: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """One pass; the gradient the optimizer gets, when it steps. A probe is a pass whose gradients are dropped."""
        self._gh200_step = step
        self._apply_dynamic_gradient_accumulation()
        if self._gh200_noise is not None:
            self._gh200_noise.begin(batch)
        stepped = None
        with self.accelerator.accumulate(self.model):
            if probe is not None:
                self.accelerator.backward(self.model(probe))
                self.model.zero_grad()
            self.accelerator.backward(self.model(row))
            if self.accelerator.sync_gradients:
                stepped = self.weight().grad.clone()
            self.optimizer.step()
            self.optimizer.zero_grad()
        if self.accelerator.sync_gradients:
            self.state["global_step"] += 1
            self.accelerator.log({"train_loss": 0.0, "learning_rate": 0.0}, step=self.state["global_step"])
        return stepped

    # What the ramp binds to, with fake bodies.

    def _split(self) -> None:
        self.split_by.append(self.config.gradient_accumulation_steps)

    def init_data_backend(self) -> None:
        self._split()
        self._recalculate_training_steps()

    def _recalculate_training_steps(self) -> None:
        self.config.total_num_batches = self.batches_per_epoch
        per_epoch = math.ceil(self.batches_per_epoch / self.config.gradient_accumulation_steps)
        self.config.num_update_steps_per_epoch = per_epoch
        self.config.max_train_steps = self.config.max_train_steps or per_epoch * self.config.num_train_epochs
        self.config.num_train_epochs = self.config.num_train_epochs or math.ceil(
            self.config.max_train_steps / per_epoch
        )

    def _epoch_rollover(self, epoch: int) -> None:
        self.state["current_epoch"] = epoch
        self._split()

    def get_steps_per_epoch_for_epoch(self, epoch: int) -> int:
        return -1

    def _train_initial_msg(self) -> None:
        pass

    def checkpoint_state_latest(self, output_dir: str) -> str | None:
        names = sorted(path.name for path in Path(output_dir).glob("checkpoint-*"))
        return names[-1] if names else None

    def init_resume_checkpoint(self, scheduler: object, *, directory: Path | None = None, step: int = 0) -> object:
        if directory is not None:
            self.accelerator.load_state(str(directory))
            self.state["global_step"] = step
        return scheduler


def rows(count: int, seed: int = 0) -> Iterable[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(5, dtype=torch.float64, generator=generator) for _ in range(count)]


def noisy_rows(count: int, seed: int = 0) -> Iterable[torch.Tensor]:
    """For a model of this size, gradients that are mostly noise: a noise scale of about as many samples."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(NOISY, dtype=torch.float64, generator=generator) - 0.5 for _ in range(count)]


def two_ranks(script: str) -> list[str]:
    """What each of two gloo ranks of a script printed; both have to end well."""
    here = Path(__file__).resolve()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(here.parents[2]), str(here.parent)]),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "ACCELERATE_USE_CPU": "true",
        "OMP_NUM_THREADS": "1",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", _IN_THIS_CHECKOUT, script],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    answers = [process.communicate(timeout=400) for process in ranks]
    for process, (_, complaints) in zip(ranks, answers, strict=True):
        assert process.returncode == 0, complaints[-2000:]
    return [output for output, _ in answers]


def on_two_ranks(script: str) -> list[dict[str, Any]]:
    """The last line of each rank, which is JSON."""
    return [json.loads(output.splitlines()[-1]) for output in two_ranks(script)]
