"""Measures the gradient noise scale in a Trainer: every gradient's norm as backward makes it, one gather per window."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..config.dataset_file import micro_batch_size
from .noise import SmoothedNoise, WindowNorms

logger = logging.getLogger("gh200.ramp")
NAME = "gh200/gradient_noise_scale"
# Elements of gradients that wait to be measured in one call: a call for each gradient would slow training down.
MOST_WAITING = 16_000_000


class NoiseMeter:
    """Hooks of the trained weights see each micro-batch's own gradient before it is added, averaged or clipped."""

    def __init__(self, trainer: Any) -> None:
        self.trainer, self.accelerator = trainer, trainer.accelerator
        self.noise = self._before = SmoothedNoise()
        self._weights: list[torch.Tensor] = []
        self._waiting: list[torch.Tensor] = []
        self._waiting_size = 0
        self._squares: list[torch.Tensor] = []
        self._window: list[_MicroBatch] = []
        self._handles: list[Any] = []
        self._armed = self._closed = False
        self._warned: set[str] = set()
        self._backward: Callable[..., Any] = self.accelerator.backward
        self._expected = micro_batch_size(vars(trainer.config), int(trainer.config.train_batch_size))

    def begin(self, batch: Any) -> None:
        """Before a micro-batch. A second backward in it (upstream probes with one) replaces the first."""
        if not self._handles:
            self.attach()
        if self._closed:
            self._window, self._closed = [], False
        self._before = self.noise
        self._window.append(_MicroBatch(_samples(batch, self._expected)))

    def attach(self) -> None:
        """Hooks every trained weight and wraps `Accelerator.backward`."""
        optimizer = self.trainer.optimizer
        self._weights = [
            weight for group in optimizer.param_groups for weight in group["params"] if weight.requires_grad
        ]
        self._handles = [weight.register_hook(self._see) for weight in self._weights]
        self.accelerator.backward = self.backward

    def detach(self) -> None:
        """Removes every hook."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._window, self._closed = [], [], False
        self.accelerator.backward = self._backward

    def _see(self, gradient: torch.Tensor) -> None:
        if not self._armed:
            return
        self._waiting.append(gradient)
        self._waiting_size += gradient.numel()
        if self._waiting_size > MOST_WAITING:
            self._take()

    def _take(self) -> None:
        if self._waiting:
            self._squares.append(_squared(self._waiting))
        self._waiting, self._waiting_size = [], 0

    def backward(self, loss: torch.Tensor, **more: Any) -> Any:
        """`Accelerator.backward`, measured."""
        self._waiting, self._waiting_size, self._squares = [], 0, []
        self._armed = bool(self._window)
        try:
            result = self._backward(loss, **more)
        finally:
            self._armed = False
        if self._window:
            self._note()
        return result

    def _note(self) -> None:
        self._take()
        self._window[-1].squared = torch.stack(self._squares).sum() if self._squares else None
        if self.accelerator.sync_gradients:
            self._closed = True
            self._close(len(self._window), self.accelerator.num_processes)

    def _close(self, size: int, ranks: int) -> None:
        if size * ranks < 2:
            self._warn_once("a window of one micro-batch on one rank has nothing to compare with and measures nothing")
            return
        if not all(micro_batch.samples for micro_batch in self._window):
            self._warn_once(
                "batches do not show their size, and datasets have different train_batch_size: not measured"
            )
            return
        # Accelerate has divided every loss by its accumulation steps, and a scaler has multiplied it.
        scaler = getattr(self.accelerator, "scaler", None)
        scale = 1.0 if scaler is None else float(scaler.get_scale())
        factor = (self.accelerator.gradient_accumulation_steps / scale) ** 2
        # With several ranks this sum is already everybody's.
        sums = [weight.grad for weight in self._weights if weight.grad is not None]
        *own, whole = _numbers([*(m.squared for m in self._window), _squared(sums) if sums else None])
        inverse = sum(1 / micro_batch.samples for micro_batch in self._window)
        rows = self._gather([factor * sum(own), inverse])
        count = size * ranks
        of_each, inverse_batch = (sum(values) / count for values in zip(*rows, strict=True))
        norms = WindowNorms(count, of_each, factor * whole / size**2, inverse_batch)
        if not norms.usable:
            self._warn_once("a window whose gradients were not finite is left out")
            return
        self.noise = self._before.with_window(norms)

    def _gather(self, values: list[float]) -> list[list[float]]:
        """Every rank's values in the ranks' order: sums of them are the same number on all of them."""
        if self.accelerator.num_processes == 1:
            return [values]
        device = self.accelerator.device
        gathered = self.accelerator.gather(torch.tensor([values], dtype=torch.float64, device=device))
        rows: list[list[float]] = gathered.tolist()
        return rows

    def _warn_once(self, text: str) -> None:
        if text not in self._warned and self.accelerator.is_main_process:
            logger.warning("GH200 noise scale: %s.", text)
        self._warned.add(text)

    def tracker_values(self) -> dict[str, float]:
        """The noise scale and its interval, once there is one."""
        found = self.noise.interval()
        if found is None:
            return {}
        ends = {NAME: found.value, f"{NAME}_low": found.low, f"{NAME}_high": found.high}
        return {name: value for name, value in ends.items() if value is not None}


@dataclass
class _MicroBatch:
    """Its size, and the squared norm of its own gradient once backward has made that."""

    samples: int
    squared: torch.Tensor | None = None


def _samples(batch: Any, expected: int | None) -> int:
    found = batch if isinstance(batch, Mapping) else {}
    tensors = (found.get(name) for name in ("latents", "tokens", "input_ids"))
    return next((int(tensor.shape[0]) for tensor in tensors if torch.is_tensor(tensor)), expected or 0)


def _squared(gradients: list[torch.Tensor]) -> torch.Tensor:
    """The squared norm of all of them together; of half precision in float32, which its own norm would not be."""
    if any(gradient.dtype in (torch.bfloat16, torch.float16) for gradient in gradients):
        norms = [torch.linalg.vector_norm(gradient, dtype=torch.float32) for gradient in gradients]
        return torch.stack(norms).double().square().sum()
    norm: torch.Tensor = torch.nn.utils.get_total_norm(gradients, foreach=True)
    return norm.double().square()


def _numbers(values: Sequence[torch.Tensor | None]) -> list[float]:
    known = [value for value in values if value is not None]
    numbers = iter(torch.stack(known).tolist() if known else ())
    return [0.0 if value is None else next(numbers) for value in values]
