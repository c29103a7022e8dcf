"""Ranks on the simulated device: NCCL cannot run, so a test says which backend takes its place."""

from __future__ import annotations

from functools import wraps
from typing import Any


def use_backend(backend: str) -> None:
    """Whoever asks torch.distributed for NCCL, or for its default, gets `backend`."""
    from torch import distributed

    start, wait = distributed.init_process_group, distributed.barrier

    @wraps(start)
    def init_process_group(asked: str | None = None, *arguments: Any, **options: Any) -> Any:
        asked = options.pop("backend", asked)
        options.pop("device_id", None)  # binds NCCL to a device before the first collective
        return start(backend if asked is None or "nccl" in asked else asked, *arguments, **options)

    @wraps(wait)
    def barrier(*arguments: Any, **options: Any) -> Any:
        options.pop("device_ids", None)  # only NCCL knows them
        return wait(*arguments, **options)

    distributed.init_process_group = init_process_group  # type: ignore[assignment]
    distributed.barrier = barrier
