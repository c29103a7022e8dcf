"""Which kinds of a run are in which pool: as the config names them, or as a plan made from what the run has finds it."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ..errors import GH200Error
from ..memory.driver import CudaError
from ..memory.hbm import free_and_total
from ..memory.hints import cuda_device
from ..memory.limits import format_size
from .optimizers import class_path
from .overrides import GradientPoolHooks, OffloadOptimizerOverrides
from .plan import (
    ACTIVATION_SHARE,
    EMA,
    GRADIENTS,
    HBM,
    OPTIMIZER,
    Capacity,
    DoesNotFit,
    Need,
    Plan,
    bucket_bytes,
    make_plan,
    placed,
)
from .step import StreamedEma, StreamedStep, streams
from .streaming import Staging, staged_bytes

if TYPE_CHECKING:
    from .hooks import ManagedMemory

logger = logging.getLogger("gh200.pools")
# Of HBM: torch's allocator rounds, and keeps parts of its segments free.
USABLE = 0.9


class OffloadPlacement:
    """`"state"`: what the config names is in managed memory from the beginning."""

    def __init__(self, memory: ManagedMemory, device: torch.device) -> None:
        self.memory, self._device = memory, device
        self._gradients: GradientPoolHooks | None = None
        self._optimizers: list[OffloadOptimizerOverrides] = []

    def of(self, kind: str) -> AbstractContextManager[None]:
        """Allocations of this thread come from that kind's pool, where it has one."""
        pool = self.memory.pool(kind)
        return pool.here() if pool is not None else nullcontext()

    def prepare(self, optimizers: list[Any]) -> None:
        """Once the optimizers are complete, and before the first step."""
        for optimizer in optimizers:
            overrides = OffloadOptimizerOverrides(optimizer, self)
            self._optimizers.append(overrides)
            self._keep_gradients(overrides.raw)
            if self.memory.pool(OPTIMIZER) is not None:
                self._step_in_buckets(overrides, self._bucket(), None)

    def prepare_ema(self, ema: Any) -> None:
        """Once the EMA model is there, or is found not to be wanted."""
        if ema is not None and self.memory.pool(EMA) is not None:
            StreamedEma(ema, self._bucket(), None)

    def _bucket(self) -> int:
        return bucket_bytes(0, torch.cuda.mem_get_info(self._device)[1])

    def before_step(self) -> None:
        """Right before an optimizer steps."""

    def _step_in_buckets(self, overrides: OffloadOptimizerOverrides, bucket: int, staging: Staging | None) -> bool:
        if not streams(overrides.optimizer):
            why = f"{class_path(overrides.raw)} steps its parameters together"
            logger.warning("GH200 managed memory: %s, so its step is not streamed: its state is read remotely", why)
            return False
        overrides.streamed = StreamedStep(overrides.raw, lambda: self.of(OPTIMIZER), bucket, staging)
        return True

    def _keep_gradients(self, optimizer: Any) -> None:
        pool = self.memory.pool(GRADIENTS)
        if pool is None:
            return
        self._gradients = self._gradients or GradientPoolHooks(pool)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._gradients.watch(parameter)


class PlannedOffload(OffloadPlacement):
    """`"auto"`: a plan when the weights are there, and again with measured activations before the first step."""

    def __init__(self, memory: ManagedMemory, trainer: Any, device: torch.device) -> None:
        super().__init__(memory, device)
        self._trainer = trainer
        self._static = 0
        self._staging = Staging(device)
        self.plan: Plan | None = None

    def of(self, kind: str) -> AbstractContextManager[None]:
        """The pool of a kind that the plan has in CPU memory."""
        if self.plan is None or self.plan.places.get(kind, HBM) == HBM:
            return nullcontext()
        return super().of(kind)

    def prepare(self, optimizers: list[Any]) -> None:
        """The first plan: the weights are there, activations are estimated."""
        self._optimizers = [OffloadOptimizerOverrides(optimizer, self) for optimizer in optimizers]
        self._static = torch.cuda.memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        capacity = self._capacity()
        self._follow(self._planned(self._need(int(ACTIVATION_SHARE * capacity.hbm)), capacity))

    def prepare_ema(self, ema: Any) -> None:
        """The EMA step, in buckets wherever EMA is."""
        if ema is not None and self.plan is not None:
            away = self.plan.places[EMA] != HBM
            # In HBM too it is stepped in buckets: its temporary would have the model's size.
            StreamedEma(ema, self.plan.bucket or self._bucket(), self._staging if away else None)

    def before_step(self) -> None:
        """The first one has seen a whole pass: its peak says what activations need."""
        if self.plan is None or self.plan.need.measured:
            return
        # Backward is over: what has gone since the peak was an activation.
        peak, kept = torch.cuda.max_memory_allocated(self._device), torch.cuda.memory_allocated(self._device)
        self._static = max(self._static, kept - self._ours())
        need = replace(self._need(peak - kept), measured=True)
        # EMA is where it is.
        fixed = replace(need, weights=need.weights + need.ema * (self.plan.places[EMA] == HBM), ema=0)
        found = make_plan(fixed, self._capacity())
        if isinstance(found, Plan):
            away = {kind for kind, place in found.places.items() if place != HBM}
            self._follow(placed(need, self._capacity(), away | ({EMA} if self.plan.places[EMA] != HBM else set())))
        else:
            logger.warning("GH200 offload: %s of %s are missing", format_size(found.missing), found.where)
            self.plan = replace(self.plan, need=need)

    def _ours(self) -> int:
        """Bytes on the device that have a place of their own in the plan, wherever it is."""
        found: list[Any] = []
        for overrides in self._optimizers:
            for group in overrides.raw.param_groups:
                found += [parameter.grad for parameter in group["params"]]
            found += [value for state in overrides.raw.state.values() for value in state.values()]
        found += getattr(getattr(self._trainer, "ema_model", None), "shadow_params", [])
        return sum(staged_bytes(value) for value in found if isinstance(value, torch.Tensor) and value.is_cuda)

    def _planned(self, need: Need, capacity: Capacity) -> Plan:
        found = make_plan(need, capacity)
        if isinstance(found, DoesNotFit):
            # Half of what is kept for activations may do; the first pass measures it.
            found = make_plan(replace(need, activations=0), capacity)
        if isinstance(found, DoesNotFit):
            raise GH200Error(
                f"this run needs {format_size(found.missing)} more of {found.where} than there is.",
                where="gh200_optimizations.managed_memory",
                why=f"{format_size(capacity.hbm)} of HBM and {format_size(capacity.host)} of CPU memory can be used",
                fix="set optimizer to adamw_bf16, gradient_checkpointing to true, or musubi_blocks_to_swap",
            )
        return found

    def _follow(self, plan: Plan) -> None:
        self.plan = plan
        logger.info("GH200 offload plan: %s", plan.describe())
        if plan.places[GRADIENTS] == HBM:
            if self._gradients is not None:
                self._gradients.stop()
        elif self._gradients is None:
            for overrides in self._optimizers:
                self._keep_gradients(overrides.raw)
        if plan.offloads:
            self._staging.reserve(plan.bucket)
        for overrides in self._optimizers:
            if plan.places[OPTIMIZER] == HBM:
                overrides.streamed = None
            elif overrides.streamed is not None or self._step_in_buckets(overrides, plan.bucket, self._staging):
                assert overrides.streamed is not None
                overrides.streamed.with_gradients = plan.places[GRADIENTS] != HBM

    def _capacity(self) -> Capacity:
        try:
            free, _ = free_and_total(cuda_device())
        except CudaError:
            free, _ = torch.cuda.mem_get_info(self._device)
        hbm = free + torch.cuda.memory_reserved(self._device) - self.memory.budget.pools
        return Capacity(int(USABLE * hbm), self.memory.available())

    def _need(self, activations: int) -> Need:
        """Of what is on the GPU: weights that upstream streams by itself have no part in it."""
        parameters = [
            parameter
            for overrides in self._optimizers
            for group in overrides.raw.param_groups
            for parameter in group["params"]
            if parameter.requires_grad and parameter.is_cuda
        ]
        trained = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
        config = self._trainer.config
        return Need(
            weights=self._static,
            gradients=trained,
            optimizer=2 * trained,
            ema=trained if self._has_ema(config) else 0,
            activations=activations,
            largest=2 * max(map(staged_bytes, parameters), default=0),
            scratch=2 * trained,
            streamable=all(streams(overrides.optimizer) for overrides in self._optimizers),
            window=int(getattr(config, "gradient_accumulation_steps", 1) or 1),
            clipped=bool(getattr(config, "max_grad_norm", 0)),
        )

    def _has_ema(self, config: Any) -> bool:
        return bool(getattr(config, "use_ema", False)) and getattr(config, "ema_device", None) == "accelerator"
