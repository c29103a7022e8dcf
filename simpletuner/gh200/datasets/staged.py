"""The in-memory datasets of one run: how each was configured, and the backends that hold them."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from ..run import Run, begin, current
from ..settings.cache_options import CacheOptions
from ..settings.schema import InMemory
from ..settings.sources import read_settings

if TYPE_CHECKING:
    from .backend import GH200InMemoryBackend


class StagedDatasets:
    def __init__(self, run: Run) -> None:
        self.options: dict[str, InMemory] = {}
        self.entries: dict[str, dict[str, Any]] = {}
        self.backends: weakref.WeakSet[GH200InMemoryBackend] = weakref.WeakSet()

    def forget(self) -> None:
        """The datasets are configured anew; what is staged goes with its backend."""
        self.options.clear()
        self.entries.clear()

    def remember(self, name: str, options: InMemory, entry: dict[str, Any]) -> None:
        self.options[name], self.entries[name] = options, entry

    def live(self) -> list[GH200InMemoryBackend]:
        return [backend for backend in self.backends if backend.staged_files]


def staged() -> StagedDatasets | None:
    run = current()
    return run.part(StagedDatasets) if run is not None else None


def staged_for_use() -> StagedDatasets:
    """Datasets can be configured where nothing is trained (a scan by the web page): that is a run of its own."""
    run = current() or begin(read_settings({}, {}), CacheOptions())
    return run.part(StagedDatasets)
