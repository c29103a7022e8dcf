"""The in-memory datasets of one run: how each was configured, and their backends."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any

from ...config.cache_options import CacheOptions
from ...config.schema import InMemory
from ...config.sources import read_settings
from ...runtime import Run, begin, current
from .directory import lies_in

if TYPE_CHECKING:
    from .backend import GH200InMemoryBackend


class StagedDatasets:
    """The datasets in RAM of one run."""

    def __init__(self, run: Run) -> None:
        self.options: dict[str, InMemory] = {}
        self.entries: dict[str, dict[str, Any]] = {}
        # Whether a bad setting ends the process, as in a training run, or is raised to who embeds the Trainer.
        self.exit_on_error = False
        self.others_write = False
        self.profile = run.settings.optimizations.profile == "auto"
        self.backends: weakref.WeakSet[GH200InMemoryBackend] = weakref.WeakSet()

    def forget(self) -> None:
        """The datasets are configured anew; what is staged goes with its backend."""
        self.options.clear()
        self.entries.clear()

    def register(self, name: str, options: InMemory, entry: dict[str, Any]) -> None:
        """How a dataset was configured."""
        self.options[name], self.entries[name] = options, entry

    def overlaps(self, directory: str) -> bool:
        """Whether a directory lies in a staged one, or the other way round."""
        given = [entry.get("instance_data_dir") for entry in self.entries.values()] if directory else []
        roots = [os.path.realpath(root.strip()) for root in given if isinstance(root, str) and root.strip()]
        own = os.path.realpath(directory)
        return any(lies_in(own, root) or lies_in(root, own) for root in roots)

    def expect_other_writers(self) -> None:
        """A process that has none of these backends is about to write: files are compared before they are read."""
        self.others_write = True
        for backend in self.live():
            backend.compare_before_reads()

    def live(self) -> list[GH200InMemoryBackend]:
        """Backends that have files in RAM."""
        return [backend for backend in self.backends if backend.staged_files]


def staged() -> StagedDatasets | None:
    """Those of the current run."""
    run = current()
    return run.part(StagedDatasets) if run is not None else None


def staged_for_use() -> StagedDatasets:
    """Datasets can be configured where nothing is trained (a scan by the web page): that is a run of its own."""
    run = current() or begin(read_settings({}, {}), CacheOptions())
    return run.part(StagedDatasets)
