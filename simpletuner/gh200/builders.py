"""What upstream builds its data backends with: a builder for in-memory datasets, and in a run what each feature adds."""

from __future__ import annotations

from typing import Any

from simpletuner.helpers.data_backend.builders.in_memory import InMemoryBackendBuilder

from .caches.sites import attach_cache_tier
from .datasets.backend import local_backend, watched_backend
from .datasets.sites import is_in_memory
from .run import current
from .settings.dataset_file import IN_MEMORY


def backend_builders(upstream: dict[str, Any]) -> dict[str, Any]:
    """Upstream's builders by type, and ours; outside of a run they build what upstream's build."""
    builders = {**upstream, IN_MEMORY: InMemoryBackendBuilder}
    return builders if current() is None else {name: _in_a_run(name, builder) for name, builder in builders.items()}


def _in_a_run(name: str, builder: Any) -> Any:
    class RunBuilder(builder):  # type: ignore[misc]
        def _create_backend(self, config: Any) -> Any:
            backend = super()._create_backend(config)
            if name == "local":
                backend = local_dataset(config, backend)
            attach_cache_tier(backend, _dataset_type(config))
            return backend

    return RunBuilder


def local_dataset(config: Any, backend: Any) -> Any:
    """In-memory datasets are local ones to upstream, which compares types in thirty places."""
    return local_backend(config, backend) if is_in_memory(config) else watched_backend(config, backend)


def _dataset_type(config: Any) -> str:
    dataset_type = getattr(config, "dataset_type", None)
    return str(getattr(dataset_type, "value", dataset_type))
