"""What crossed the link, per optimizer step: faults, evictions, bytes by direction and cause."""

from __future__ import annotations

import ctypes
import json
from functools import wraps
from typing import Any

import torch

from .memory import find_library


def read_traffic() -> dict[str, Any]:
    """The counters of this process so far, as the report has them."""
    text = find_library().cuda_sim_traffic
    text.restype = ctypes.c_void_p
    pointer = text()
    try:
        return dict(json.loads(ctypes.string_at(pointer)))
    finally:
        free = ctypes.CDLL(None).free
        free.argtypes = [ctypes.c_void_p]
        free(pointer)


def mark_step() -> None:
    """What follows is the next step's."""
    find_library().cuda_sim_mark_step()


def count_by_step() -> None:
    """A step ends where its gradients are dropped: once per optimizer step, in how many parts it may have been made."""
    zero = torch.optim.Optimizer.zero_grad

    @wraps(zero)
    def zero_grad(optimizer: torch.optim.Optimizer, *arguments: Any, **options: Any) -> None:
        zero(optimizer, *arguments, **options)
        mark_step()

    torch.optim.Optimizer.zero_grad = zero_grad  # type: ignore[method-assign]
