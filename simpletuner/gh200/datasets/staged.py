"""The in-memory datasets of one run: how each was configured, and the backends that hold them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..run import Run, begin, current
from ..settings.cache_options import CacheOptions
from ..settings.schema import InMemory
from ..settings.sources import read_settings
from .folder import lies_in

if TYPE_CHECKING:
    from .backend import GH200InMemoryBackend


@dataclass(frozen=True)
class Source:
    """A folder to stage, by its real path, and the dataset it is staged for."""

    dataset: str
    root: str
    options: InMemory


def sources_of(entries: Sequence[Mapping[str, Any]], options: Mapping[str, InMemory]) -> list[Source]:
    """The folders of entries that have one and are held in RAM."""
    found = []
    for entry in entries:
        name, folder = str(entry.get("id", "")), entry.get("instance_data_dir")
        if name in options and isinstance(folder, str) and folder.strip():
            found.append(Source(name, os.path.realpath(folder.strip()), options[name]))
    return found


def outermost(own: Source, others: Sequence[Source]) -> Source:
    """The largest configured folder this one lies in, so that the files of both are in RAM once."""
    for other in others:
        same = other.options.compression == own.options.compression
        if same and other.root != own.root and lies_in(own.root, other.root) and os.path.isdir(other.root):
            return outermost(other, others)
    return own


class StagedDatasets:
    def __init__(self, run: Run) -> None:
        self.options: dict[str, InMemory] = {}
        self.entries: dict[str, dict[str, Any]] = {}
        # Whether a bad setting ends the process, as in a training run, or is raised to who embeds the Trainer.
        self.exit_on_error = False
        self.backends: weakref.WeakSet[GH200InMemoryBackend] = weakref.WeakSet()

    def forget(self) -> None:
        """The datasets are configured anew; what is staged goes with its backend."""
        self.options.clear()
        self.entries.clear()

    def remember(self, name: str, options: InMemory, entry: dict[str, Any]) -> None:
        self.options[name], self.entries[name] = options, entry

    def sources(self) -> list[Source]:
        return sources_of(list(self.entries.values()), self.options)

    def overlaps(self, folder: str) -> bool:
        """Whether a folder lies in one that is held in RAM, or the other way round."""
        own = os.path.realpath(folder)
        roots = [source.root for source in self.sources()] if folder else []
        return any(lies_in(own, root) or lies_in(root, own) for root in roots)

    def live(self) -> list[GH200InMemoryBackend]:
        return [backend for backend in self.backends if backend.staged_files]


def staged() -> StagedDatasets | None:
    run = current()
    return run.part(StagedDatasets) if run is not None else None


def staged_for_use() -> StagedDatasets:
    """Datasets can be configured where nothing is trained (a scan by the web page): that is a run of its own."""
    run = current() or begin(read_settings({}, {}), CacheOptions())
    return run.part(StagedDatasets)
