"""GH200 support for SimpleTuner: everything the fork adds lives in this package; upstream only calls into it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Loaded when first used: StateTracker imports this package early, before torch is wanted.
_EXPORTS = {
    "GH200Error": "errors",
    "GH200GradientRamp": "ramp",
    "GH200InMemoryBackend": "in_memory_backend",
    "RuntimeConfig": "runtime",
    "Settings": "settings",
    "SettingsError": "settings_errors",
    "StateHooks": "state",
    "TrainerHooks": "trainer_hooks",
    "gh200_uvm_enabled": "uvm",
    "optimize_batch_for_gh200": "uvm",
    "prefer_cpu_residency": "uvm",
    "prefer_gpu_residency": "uvm",
    "prefetch_to_device": "uvm",
    "read_settings": "settings_sources",
    "set_uvm_hint_override": "uvm",
}
__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_EXPORTS[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
