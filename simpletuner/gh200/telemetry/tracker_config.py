"""Tensorboard in a run with telemetry: it takes no nested settings, and upstream has some."""

from __future__ import annotations

import json
from typing import Any

from ..overrides import Overrides, override

_TENSORBOARD = "tensorboard"


class TrackerConfig(Overrides):
    """Upstream keeps a table among its settings (the batches of each epoch), and tensorboard ends the run over it."""

    upstream_class, feature = "Accelerator", "telemetry"

    def __init__(self, accelerator: Any) -> None:
        super().__init__()
        names = [str(getattr(one, "value", one)) for one in getattr(accelerator, "log_with", None) or ()]
        if _TENSORBOARD in names:
            self.install(accelerator)

    @override
    def init_trackers(self, project_name: str, config: dict[str, Any] | None = None, *args: Any, **kwargs: Any) -> Any:
        return self.upstream.init_trackers(project_name, _plain(config), *args, **kwargs)


def _plain(config: dict[str, Any] | None) -> dict[str, Any] | None:
    """Nested values as the JSON text of them."""
    if config is None:
        return None
    nested = {
        name: json.dumps(value, default=str) for name, value in config.items() if isinstance(value, dict | list | tuple)
    }
    return {**config, **nested}
