"""The optimizer step and the EMA step in buckets, with their state in CPU memory between steps."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch

from ..overrides import Overrides, override
from .buckets import Bucket, buckets, only
from .optimizers import is_streamable
from .streaming import StagedTensor, StagedWork, Staging, is_dense, staged_bytes

FEATURE = "managed memory"
Pool = Callable[[], AbstractContextManager[None]]


def is_offloadable(value: object) -> bool:
    """State that is worth a copy: a plain tensor of more than one element on the GPU."""
    return type(value) is torch.Tensor and value.is_cuda and value.numel() > 1 and is_dense(value)


class StreamedStep:
    """One optimizer's step. State that appears, at the first step or with a checkpoint, moves into the pool; without
    staging it is worked on where it is, in buckets all the same, so that scratch memory stays small.
    """

    def __init__(self, optimizer: Any, pool: Pool, bucket: int, staging: Staging | None) -> None:
        self._optimizer, self._pool, self._bucket, self._staging = optimizer, pool, bucket, staging
        self._homes: set[int] = set()
        self.with_gradients = False

    def step(self, call: Callable[[], Any]) -> None:
        """`call` is the optimizer's own step."""
        parts = list(buckets(self._optimizer.param_groups, self._size, self._bucket))
        for part in parts:
            self._bring_home(part, {})
        jobs = [StagedWork(self._slots(part), partial(self._work, part, call)) for part in parts]
        if self._staging is not None and any(job.slots for job in jobs):
            self._staging.run(jobs)
        else:
            for job in jobs:
                job.work()

    def _work(self, part: Bucket, call: Callable[[], Any]) -> None:
        staged = self._tensors(part) if self._staging is not None else {}
        with only(self._optimizer, part):
            call()
        for (parameter, key), tensor in staged.items():
            made = self._optimizer.state[parameter].get(key)
            if made is not tensor and made is not None:
                tensor.copy_(made)
        self._bring_home(part, staged)

    def _tensors(self, part: Bucket) -> dict[tuple[Any, str], torch.Tensor]:
        """The state of a bucket's parameters, wherever it is."""
        return {
            (parameter, key): value
            for parameter in part.parameters
            for key, value in self._optimizer.state.get(parameter, {}).items()
            if is_offloadable(value)
        }

    def _size(self, parameter: Any) -> int:
        state = [value for value in self._optimizer.state.get(parameter, {}).values() if is_offloadable(value)]
        # At the first step nothing is there yet: most optimizers keep two values per parameter.
        known = sum(map(staged_bytes, state)) if state else 2 * staged_bytes(parameter)
        return known + (staged_bytes(parameter.grad) if self.with_gradients else 0)

    def _slots(self, part: Bucket) -> list[StagedTensor]:
        if self._staging is None:
            return []
        state = self._optimizer.state
        found = [
            StagedTensor(home, partial(state[owner].__setitem__, key))
            for (owner, key), home in self._tensors(part).items()
        ]
        if self.with_gradients:
            gradients = [parameter for parameter in part.parameters if is_offloadable(parameter.grad)]
            found += [StagedTensor(owner.grad, partial(setattr, owner, "grad"), written=False) for owner in gradients]
        return found

    def _bring_home(self, part: Bucket, staged: Mapping[tuple[Any, str], Any]) -> None:
        """State that the optimizer or a checkpoint made elsewhere is copied into the pool, and lives there from then on."""
        for (parameter, key), value in self._tensors(part).items():
            if (parameter, key) not in staged and value.data_ptr() not in self._homes:
                with self._pool():
                    home = value.clone(memory_format=torch.preserve_format)
                self._optimizer.state[parameter][key] = home
                self._homes.add(home.data_ptr())


class StreamedEma(Overrides):
    """One EMAModel, stepped in buckets: its temporary is a bucket's and not the model's."""

    upstream_class, feature = "EMAModel", FEATURE

    def __init__(self, ema: Any, bucket: int, staging: Staging | None) -> None:
        super().__init__()
        self.ema, self.bucket, self.staging = ema, bucket, staging
        self.install(ema)

    @override
    def step(self, parameters: Any, global_step: int | None = None) -> Any:
        parameters = list(parameters)
        whole = partial(self.upstream.step, parameters, global_step)
        if global_step is None or not self._can_be_cut(parameters):
            return whole()
        due = getattr(sys.modules.get(type(self.ema).__module__), "should_update_ema", None)
        if due is not None and not due(self.ema.args, global_step):
            return None
        jobs = [
            StagedWork(self._slots(part), partial(self._work, part, parameters, global_step))
            for part in self._parts(self.ema.shadow_params)
        ]
        with self._one_kernel(parameters):
            if self.staging is not None:
                self.staging.run(jobs)
            else:
                for job in jobs:
                    job.work()
        return None

    def _can_be_cut(self, parameters: list[Any]) -> bool:
        """On the GPU, and each shadow beside the parameter it follows."""
        shadows, tracked = self.ema.shadow_params, getattr(self.ema, "_tracked_param_ids", None)
        return list(map(id, parameters)) == tracked and all(map(is_offloadable_or_small, shadows))

    def _parts(self, shadows: list[Any]) -> Iterator[list[int]]:
        part: list[int] = []
        total = 0
        for number, shadow in enumerate(shadows):
            if part and total + staged_bytes(shadow) > self.bucket:
                yield part
                part, total = [], 0
            part.append(number)
            total += staged_bytes(shadow)
        if part:
            yield part

    def _slots(self, part: list[int]) -> list[StagedTensor]:
        shadows = self.ema.shadow_params
        return [StagedTensor(shadows[number], partial(shadows.__setitem__, number)) for number in part]

    def _work(self, part: list[int], parameters: list[Any], global_step: int) -> None:
        ema = self.ema
        shadows, tracked = ema.shadow_params, ema._tracked_param_ids
        ema.shadow_params = [shadows[number] for number in part]
        ema._tracked_param_ids = [tracked[number] for number in part]
        try:
            self.upstream.step([parameters[number] for number in part], global_step)
        finally:
            ema.shadow_params, ema._tracked_param_ids = shadows, tracked

    @contextmanager
    def _one_kernel(self, parameters: list[Any]) -> Iterator[None]:
        """Both kernels of EMAModel round differently, so all buckets take the one that the whole model would."""
        ema, before = self.ema, self.ema.foreach
        trained = [(p, s) for p, s in zip(parameters, ema.shadow_params, strict=True) if p.requires_grad]
        ema.foreach = ema._should_use_foreach([p for p, _ in trained], [s for _, s in trained])
        try:
            yield
        finally:
            ema.foreach = before


def is_offloadable_or_small(value: object) -> bool:
    """A tensor on the GPU that a bucket can have."""
    return isinstance(value, torch.Tensor) and value.is_cuda and is_dense(value)


def streams(optimizer: Any) -> bool:
    """Whether a prepared optimizer can be stepped in buckets."""
    raw = getattr(optimizer, "optimizer", optimizer)
    # A gradient scaler looks at all gradients, and counts steps.
    return is_streamable(raw) and getattr(optimizer, "scaler", None) is None
