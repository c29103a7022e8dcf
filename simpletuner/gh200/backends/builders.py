"""What upstream builds its data backends with: a builder for in-memory datasets, and in a run ours for local backends."""

from __future__ import annotations

from typing import Any

from simpletuner.helpers.data_backend.builders.in_memory import InMemoryBackendBuilder
from simpletuner.helpers.data_backend.local import LocalDataBackend

from ..config.keys import IN_MEMORY
from ..runtime import current
from .ram.backend import GH200InMemoryBackend, local_backend, watched_backend
from .ram.hooks import is_in_memory
from .tensors.backend import UnifiedCacheTier
from .tensors.hooks import attach_cache_tier, is_cached


class UnifiedCacheBackend(UnifiedCacheTier, LocalDataBackend):  # type: ignore[misc]
    """A local backend whose cache is in unified memory."""


class InMemoryCacheBackend(UnifiedCacheTier, GH200InMemoryBackend):
    """The same for a dataset in RAM, or one that shares its directory, where both go through one backend."""


def backend_builders(upstream: dict[str, Any]) -> dict[str, Any]:
    """Upstream's builders by type, and ours; outside of a run they build what upstream's build."""
    builders = {**upstream, IN_MEMORY: InMemoryBackendBuilder}
    return builders if current() is None else builders | {"local": _in_a_run(upstream["local"])}


def _in_a_run(builder: Any) -> Any:
    class RunBuilder(builder):  # type: ignore[misc]
        def _create_backend(self, config: Any) -> Any:
            return local_dataset(config, super()._create_backend(config))

    return RunBuilder


def local_dataset(config: Any, backend: Any) -> Any:
    """In-memory datasets are local ones to upstream, which compares types in thirty places."""
    dataset_type = _dataset_type(config)
    cached = is_cached(dataset_type)
    kind = InMemoryCacheBackend if cached else GH200InMemoryBackend
    backend = (local_backend if is_in_memory(config) else watched_backend)(config, backend, kind)
    if cached:
        if not isinstance(backend, UnifiedCacheTier):
            backend = UnifiedCacheBackend(backend.accelerator, backend.id, backend.compress_cache)
        attach_cache_tier(backend, dataset_type)
    return backend


def _dataset_type(config: Any) -> str:
    dataset_type = getattr(config, "dataset_type", None)
    return str(getattr(dataset_type, "value", dataset_type))
