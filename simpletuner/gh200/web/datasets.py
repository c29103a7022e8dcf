"""The datasets of SimpleTuner's page: inside the active config or in its file, those in RAM as local ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

from ..config.keys import IN_MEMORY
from ..overrides import Overrides, override
from .live import SERVER
from .saving import loaded

LOCAL = "local"


def extend_dataset_plan(plan: Any) -> None:
    """Overrides how datasets in RAM are read and saved."""
    training = import_module(f"{SERVER}.services.training_service")
    DatasetPlan(training.get_config_store).install(plan)


class DatasetPlan(Overrides):
    """The datasets of the page: those inside the active config where it has them, else those of its file.

    A dataset in RAM is a local one to the page, which drops the directory of all others; its block marks it.
    """

    upstream_class = "DatasetPlanStore"
    feature = "datasets in RAM on the page of datasets"

    def __init__(self, store: Callable[[], Any]) -> None:
        super().__init__()
        self.store = store

    @override
    def load(self) -> tuple[list[Any], str, str | None]:
        inline = self._config().get("datasets")
        datasets, source, updated = (inline, "disk", None) if inline else self.upstream.load()
        return [shown(entry) for entry in datasets], source, updated

    @override
    def save(self, datasets: list[Any]) -> Any:
        config, entries = self._config(), [kept(entry) for entry in datasets]
        if not config:
            return self.upstream.save(entries)
        store = self.store()
        store.save_trainer_config(store.get_active_config(), config | {"datasets": entries}, overwrite=True)
        return datetime.now(UTC).isoformat()

    def _config(self) -> dict[str, Any]:
        """The active config, if its datasets are inside it."""
        store = self.store()
        config = loaded(store, store.get_active_config() or "default")
        inline = isinstance(config.get("datasets"), list) and not config.get("data_backend_config")
        return dict(config) if inline else {}


def shown(entry: Any) -> Any:
    """A dataset entry as the page gets it."""
    if not isinstance(entry, Mapping) or entry.get("type") != IN_MEMORY:
        return entry
    return {IN_MEMORY: {}, **entry, "type": LOCAL}


def kept(entry: Any) -> Any:
    """A dataset entry as the file keeps it."""
    if not isinstance(entry, Mapping) or entry.get("type") != LOCAL or IN_MEMORY not in entry:
        return entry
    return {**entry, "type": IN_MEMORY}
