"""Whether the profile "auto" puts weights and optimizer state beyond HBM: only where the estimate exceeds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..config.keys import AUTO
from ..config.profile import CHOSEN
from .memory_estimate import Memory, estimate_of, gpu_memory, shortage_of
from .upstream_keys import upstream_record

if TYPE_CHECKING:
    from ..config.schema import Settings

_KEY = "gh200_optimizations.managed_memory"
_OFFLOAD = "auto"


def with_chosen_offload(settings: Settings, config: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    """The settings of a run that starts here."""
    if settings.optimizations.profile != AUTO:
        return settings
    upstream, _ = upstream_record(False, lambda text: None)
    return with_offload(settings, config, estimate_of(config, upstream, environ), gpu_memory(environ))


def with_offload(settings: Settings, config: Mapping[str, Any], memory: Memory | None, gpu: int) -> Settings:
    """The settings with the profile's choice; an explicit key, and any other profile, leaves them as they are."""
    if settings.optimizations.profile != AUTO or settings.origins[_KEY] != "default":
        return settings
    value, why = _choice(memory, config, gpu)
    return replace(
        settings,
        optimizations=settings.optimizations.model_copy(update={"managed_memory": value}),
        origins=MappingProxyType({**settings.origins, _KEY: f"{CHOSEN}{why}"}),
    )


def _choice(memory: Memory | None, config: Mapping[str, Any], gpu: int) -> tuple[str, str]:
    if not gpu:
        return "off", "there is no GPU here"
    if memory is None:
        return "off", "the weights are not on this machine yet, so their size is not known"
    kind, text = shortage_of(memory, config, gpu)
    return (_OFFLOAD, text.partition(";")[0]) if kind else ("off", "by the estimate the GPU's memory suffices")
