"""Builder of in-memory datasets, registered as `in_memory` beside upstream's own."""

from __future__ import annotations

from typing import Any

from simpletuner.gh200.backends.ram.backend import staged_backend
from simpletuner.gh200.config.keys import IN_MEMORY
from simpletuner.helpers.data_backend.builders.local import LocalBackendBuilder


class InMemoryBackendBuilder(LocalBackendBuilder):  # type: ignore[misc]
    """Builds the local backend upstream would build, then stages its directory."""

    def _create_backend(self, config: Any) -> Any:
        return staged_backend(config, super()._create_backend(config), config.config.get(IN_MEMORY), config.config)
