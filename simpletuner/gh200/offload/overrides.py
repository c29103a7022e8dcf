"""Where a run allocates each kind of memory: there, and only there, torch allocates from a pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..overrides import Overrides, override
from .step import FEATURE, StreamedStep
from .torch_pool import TorchPool

if TYPE_CHECKING:
    from .placement import OffloadPlacement


class OffloadTrainerOverrides(Overrides):
    """Where the Trainer makes weights, EMA and optimizer state."""

    upstream_class, feature = "Trainer", FEATURE

    def __init__(self, trainer: Any, placement: OffloadPlacement) -> None:
        super().__init__()
        self.trainer, self.placement = trainer, placement
        self.install(trainer)

    @override
    def move_models(self, *args: Any, **kwargs: Any) -> Any:
        with self.placement.of("weights"):
            return self.upstream.move_models(*args, **kwargs)

    @override
    def init_prepare_models(self, *args: Any, **kwargs: Any) -> Any:
        # What is still on the CPU is moved here. The buckets of several ranks begin here too, but after the first step
        # torch makes them anew, in plain memory.
        with self.placement.of("weights"):
            result = self.upstream.init_prepare_models(*args, **kwargs)
        optimizers = (self.trainer.optimizer, getattr(self.trainer, "sidecar_optimizer", None))
        self.placement.prepare([optimizer for optimizer in optimizers if optimizer is not None])
        return result

    @override
    def init_ema_model(self, *args: Any, **kwargs: Any) -> Any:
        with self.placement.of("ema"):
            result = self.upstream.init_ema_model(*args, **kwargs)
        self.placement.prepare_ema(getattr(self.trainer, "ema_model", None))
        return result


class OffloadOptimizerOverrides(Overrides):
    """An optimizer makes its state at its first step, and scratch memory at every one."""

    upstream_class, feature = "Optimizer", FEATURE

    def __init__(self, optimizer: Any, placement: OffloadPlacement) -> None:
        super().__init__()
        self.optimizer, self.placement = optimizer, placement
        self.raw = getattr(optimizer, "optimizer", optimizer)
        self.streamed: StreamedStep | None = None
        self.install(optimizer)

    @override
    def step(self, *args: Any, **kwargs: Any) -> Any:
        if not self._steps():
            return self.upstream.step(*args, **kwargs)
        self.placement.before_step()
        if self.streamed is not None and not args and not kwargs:
            return self.streamed.step(self.upstream.step)
        with self.placement.of("optimizer" if self._has_more_to_make() else "scratch"):
            return self.upstream.step(*args, **kwargs)

    def _steps(self) -> bool:
        """Inside an accumulation window a prepared optimizer does nothing."""
        gradients = getattr(self.optimizer, "gradient_state", None)
        return gradients is None or bool(gradients.sync_gradients)

    def _has_more_to_make(self) -> bool:
        """Some parameter that will be stepped has no state yet."""
        state = self.raw.state
        return any(
            parameter.grad is not None and parameter not in state
            for group in self.raw.param_groups
            for parameter in group["params"]
        )


class GradientPoolHooks:
    """Backward makes a gradient in its own thread and memory; as soon as it is complete it moves into the pool."""

    def __init__(self, pool: TorchPool) -> None:
        self._pool = pool
        self._moved: dict[int, int] = {}
        self._watched: list[tuple[Any, Any]] = []

    def watch(self, parameter: Any) -> None:
        """Registers the hook of one parameter."""
        if parameter.requires_grad and parameter.is_cuda:
            handle = parameter.register_post_accumulate_grad_hook(self._accumulated)
            self._watched.append((parameter, handle))

    def stop(self) -> None:
        """Gradients leave the pool, and stay where backward makes them from now on."""
        for parameter, handle in self._watched:
            handle.remove()
            if parameter.grad is not None:
                parameter.grad = parameter.grad.clone()
        self._watched.clear()

    def _accumulated(self, parameter: Any) -> None:
        gradient = parameter.grad
        # Later micro-batches of a window add to the gradient in place; a pool's addresses are never anyone else's.
        if gradient is None or gradient.is_sparse or self._moved.get(id(parameter)) == gradient.data_ptr():
            return
        with self._pool.here():
            parameter.grad = gradient.clone()
        self._moved[id(parameter)] = parameter.grad.data_ptr()
