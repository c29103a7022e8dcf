"""The owner's name for `memory.hints`: placement hints and the switch that turns them on."""

from .memory.batch import optimize_batch_for_gh200
from .memory.hints import (
    gh200_uvm_enabled,
    prefer_cpu_residency,
    prefer_gpu_residency,
    prefetch_to_device,
    set_uvm_hint_override,
)

__all__ = [
    "gh200_uvm_enabled",
    "optimize_batch_for_gh200",
    "prefer_cpu_residency",
    "prefer_gpu_residency",
    "prefetch_to_device",
    "set_uvm_hint_override",
]
