"""Builder of in-memory datasets, registered as `in_memory` beside upstream's own."""

from __future__ import annotations

from typing import Any

from simpletuner.gh200.datasets.backend import staged_backend
from simpletuner.gh200.datasets.sites import IN_MEMORY
from simpletuner.helpers.data_backend.builders.local import LocalBackendBuilder


class InMemoryBackendBuilder(LocalBackendBuilder):
    """Builds the local backend upstream would build, then stages its folder."""

    def _create_backend(self, config: Any) -> Any:
        backend = super()._create_backend(config)
        # A dataset that came through the factory is staged already.
        if getattr(backend, "staged_files", 0):
            return backend
        return staged_backend(config, backend, config.config.get(IN_MEMORY), config.config)
