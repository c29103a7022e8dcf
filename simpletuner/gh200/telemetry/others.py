"""Trackers of others in a run with telemetry: one that fails, and one that takes no nested settings."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ..stand_in import StandIn, instead

FEATURE = "telemetry"
_TENSORBOARD = "tensorboard"


class GuardedTracker(StandIn):
    """A tracker that fails takes neither the others nor the training along; upstream gives up the whole entry."""

    upstream_class, feature = "GeneralTracker", FEATURE

    def __init__(self, tracker: Any, problem: Callable[[str, str], None]) -> None:
        super().__init__()
        self._name, self._problem = getattr(tracker, "name", type(tracker).__name__), problem
        self.take_over(tracker)

    @instead
    def log(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self.upstream.log(*args, **kwargs)
        except Exception as error:
            self._problem(f"tracker {self._name}", f"{type(error).__name__}: {error}")
            return None


class PlainSettings(StandIn):
    """Upstream keeps a table among its settings (the batches of each epoch), and tensorboard ends the run over it."""

    upstream_class, feature = "Accelerator", FEATURE

    def __init__(self, accelerator: Any) -> None:
        super().__init__()
        self._names = [str(getattr(one, "value", one)) for one in getattr(accelerator, "log_with", None) or ()]
        if _TENSORBOARD in self._names:
            self.take_over(accelerator)

    @instead
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
