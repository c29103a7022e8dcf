"""The cache folders of a training config as they lie on disk: whose they are, how big, and whether anybody needs them."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import GH200Error
from ..settings.cache_options import CacheOptions
from ..settings.dataset_file import entries_of_file
from ..settings.keys import DATASETS_FILE_KEY
from ..settings.sources import read_config_settings
from ..settings.transport import loaded_config
from .dirs import DIRECTORY_KEYS, LOCAL_TYPES, PRIVATE, owner_of

_VARIABLE = re.compile(r"\{(model_family|output_dir|id)\}")


@dataclass(frozen=True, order=True)
class CacheEntry:
    path: Path
    bytes: int
    written: float


@dataclass(frozen=True)
class CacheFolder:
    """One folder of entries; `stale` says why no run with this config reads it as it is, empty where one does."""

    dataset: str
    kind: str
    model: str
    path: Path
    entries: tuple[CacheEntry, ...]
    stale: str = ""
    in_use: str = ""

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.entries)

    @property
    def newest(self) -> float:
        return max((entry.written for entry in self.entries), default=0.0)


class Plan:
    """Where a run with this config would keep its caches."""

    def __init__(self, config_file: Path, environ: Mapping[str, str]) -> None:
        self.config = loaded_config(config_file)
        self.settings = read_config_settings(self.config, environ)
        self.model = str(self.config.get("model_family") or "unknown_model")
        self.output = Path(str(self.config.get("output_dir") or Path.cwd() / ".simpletuner_output"))
        options = CacheOptions.from_settings(self.settings)
        self.kinds, self.cache_dir, self.persistent = options.kinds, options.cache_dir, options.persistent

    def parent(self) -> Path | None:
        """What the fork puts caches below; with `persistent_cache` false, the folders of single runs."""
        if self.cache_dir is not None:
            return Path(self.cache_dir)
        return None if self.persistent else Path(tempfile.gettempdir())

    def datasets(self) -> list[dict[str, Any]]:
        inline = self.settings.inline_datasets
        found = json.loads(inline) if inline else entries_of_file(self.config.get(DATASETS_FILE_KEY))
        if not found:
            raise GH200Error(
                "The config names no datasets.",
                where=DATASETS_FILE_KEY,
                why="its caches belong to datasets",
                fix='name a dataset file there, or write the datasets under "datasets"',
            )
        entries = [dict(entry) for entry in found if isinstance(entry, Mapping)]
        if not any(entry.get("dataset_type") == "text_embeds" for entry in entries):
            entries.append({"id": "text-embeds", "dataset_type": "text_embeds", "made": True})
        return entries

    def folder_of(self, entry: Mapping[str, Any]) -> tuple[str, Path] | None:
        """The kind of a dataset's cache and its folder; None for what has none on this machine."""
        kind_of_set = str(entry.get("dataset_type") or "image")
        key, kind = DIRECTORY_KEYS.get(kind_of_set, ("", ""))
        if not kind or str(entry.get("type") or "local") not in LOCAL_TYPES:
            return None
        name = str(entry.get("id") or "")
        in_config = self.config.get({"vae": "cache_dir_vae", "text": "cache_dir_text"}.get(kind, ""))
        own = entry.get(key) or (in_config if kind == "text" else None)
        if own:
            return kind, Path(self._filled(str(own), name))
        if not self.persistent and kind in self.kinds and not in_config:
            return None
        if self.cache_dir is not None and kind in self.kinds and not in_config:
            return kind, Path(self.cache_dir) / kind / self.model / name
        if kind == "text" and not entry.get("made"):
            return kind, Path("cache")  # upstream's default for a text dataset that names no folder
        below = {"vae": Path("audio/vae") if kind_of_set == "audio" else Path("vae")}.get(kind, Path(kind))
        return kind, self.output / "cache" / below / self.model / ("" if entry.get("made") else name)

    def _filled(self, text: str, name: str) -> str:
        values = {"model_family": self.model, "output_dir": str(self.output), "id": name}
        return _VARIABLE.sub(lambda match: values[match.group(1)], text)


def cache_folders(plan: Plan) -> list[CacheFolder]:
    """Those of the config's datasets, then what else lies below its `cache_dir`."""
    found: list[CacheFolder] = []
    for entry in plan.datasets():
        place = plan.folder_of(entry)
        if place is not None:
            kind, path = place
            entries = _entries(path)
            stale = _stale(entry, kind, entries)
            found.append(CacheFolder(str(entry.get("id") or ""), kind, plan.model, path, entries, stale))
    parent = plan.parent()
    if parent is not None:
        found += _others(parent, [folder.path.absolute() for folder in found])
    return found


def _files(top: str | Path) -> Iterator[tuple[str, os.stat_result]]:
    """What can be looked at: a run may be at work there, and links may lead nowhere."""
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            try:
                found = os.stat(path)
            except OSError:
                continue
            if stat.S_ISREG(found.st_mode):
                yield path, found


def _entries(path: Path) -> tuple[CacheEntry, ...]:
    found = ((Path(name), facts) for name, facts in _files(path) if name.endswith(".pt"))
    return tuple(sorted(CacheEntry(name, facts.st_size, facts.st_mtime) for name, facts in found))


def _stale(entry: Mapping[str, Any], kind: str, entries: Sequence[CacheEntry]) -> str:
    """Upstream reads an entry whatever became of its source: a picture that was changed later keeps its old latents."""
    source = entry.get("instance_data_dir")
    if kind != "vae" or not source or not entries or not Path(str(source)).is_dir():
        return ""
    oldest = min(one.written for one in entries)
    pictures = (facts for name, facts in _files(str(source)) if not name.endswith((".pt", ".json", ".txt")))
    changed = sum(facts.st_mtime > oldest for facts in pictures)
    return f"{changed} files of {source} are newer than its oldest entry" if changed else ""


def _others(parent: Path, known: list[Path]) -> Iterator[CacheFolder]:
    if not parent.is_dir():
        return
    for left in sorted(parent.glob(f"{PRIVATE}*")):
        owner = owner_of(left)
        in_use = f"process {owner}" if owner is not None and Path("/proc", str(owner)).exists() else ""
        other = "" if left.name.startswith(f"{PRIVATE}{socket.gethostname()}-") else "made on another machine"
        stale = "" if in_use or other else "left by a run that was killed"
        yield CacheFolder("", "run", "", left, _entries(left), stale, in_use or other)
    for kind in sorted({kind for _, kind in DIRECTORY_KEYS.values()}):
        for path in sorted(parent.glob(f"{kind}/*/*")):
            if path.is_dir() and path.absolute() not in known:
                stale = "no dataset of this config uses it"
                yield CacheFolder(path.name, kind, path.parent.name, path, _entries(path), stale)
