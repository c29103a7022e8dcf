"""GH200 support for SimpleTuner: everything the fork adds lives in this package; upstream only calls into it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Loaded when first used: StateTracker imports this package early, before torch is wanted.
_EXPORTS = {
    "GH200Error": "errors",
    "GH200GradientRamp": "ramp.schedule",
    "GH200InMemoryBackend": "backends.ram.backend",
    "Run": "runtime",
    "Settings": "config.schema",
    "SettingsError": "config.problems",
    "StateHooks": "state",
    "TrainerHooks": "trainer",
    "gh200_uvm_enabled": "memory.hints",
    "optimize_batch_for_gh200": "memory.batch",
    "prefer_cpu_residency": "memory.hints",
    "prefer_gpu_residency": "memory.hints",
    "prefetch_to_device": "memory.hints",
    "read_settings": "config.sources",
    "set_uvm_hint_override": "memory.hints",
}
__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_EXPORTS[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
