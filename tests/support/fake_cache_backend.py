"""A fake data backend below the tier: real files, and a count of what is read from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from simpletuner.gh200.backends.tensors import hooks
from simpletuner.gh200.backends.tensors.backend import UnifiedCacheTier
from simpletuner.gh200.config.cache_options import CacheOptions


class Directory:
    """Keeps .pt files in a directory; `loads` counts reads, `while_reading` runs between reading and returning."""

    def __init__(self, name: str = "files", kind: str = "local") -> None:
        self.id, self.type = name, kind
        self.loads: Counter[str] = Counter()
        self.while_reading: Callable[[], None] = lambda: None

    def torch_load(self, filename: str) -> Any:
        if not Path(filename).exists():
            raise FileNotFoundError(f"{filename} not found.")
        self.loads[filename] += 1
        value = torch.load(filename, map_location="cpu")
        self.while_reading()
        return value

    def torch_save(self, data: Any, location: Any) -> None:
        """To a path, or as upstream's `write` does to the file that is to become it."""
        if not isinstance(location, str):
            torch.save(data, location)
            return
        partial = Path(f"{location}.new")
        with partial.open("wb") as file:
            torch.save(data, file)
        partial.replace(location)

    def write(self, filepath: str, data: Any) -> None:
        partial = Path(f"{filepath}.new")
        with partial.open("wb") as file:
            self.torch_save(data, file)
        partial.replace(filepath)

    def write_batch(self, filepaths: list[str], data_list: list[Any]) -> None:
        for filepath, data in zip(filepaths, data_list, strict=True):
            self.write(filepath, data)

    def delete(self, filepath: str) -> None:
        Path(filepath).unlink()

    def exists(self, filepath: str) -> bool:
        return Path(filepath).exists()

    def open_file(self, filepath: str, mode: str) -> Any:
        return Path(filepath).open(mode)

    def list_files(self, file_extensions: list[str], instance_data_dir: str) -> list[tuple[str, list[str], list[str]]]:
        return [(instance_data_dir, [], [str(path) for path in Path(instance_data_dir).rglob("*.pt")])]


class DirectoryBackend(UnifiedCacheTier, Directory):
    """As the builder makes one of upstream's class."""


DATASETS = {"vae": "image", "text": "text_embeds"}


def tiered(backend: Any, kind: str = "vae") -> Any:
    """The backend, its tier in use where caches of that kind are kept in memory."""
    if hooks.is_cached(DATASETS[kind]):
        hooks.attach_cache_tier(backend, DATASETS[kind])
    return backend


def unified(**options: Any) -> CacheOptions:
    kinds = frozenset({"vae", "text", "image_embed", "distillation"})
    # A fixed placement: tests count the calls of the driver.
    return CacheOptions(**{"kinds": kinds, "hints": True, "placement": "managed"} | options)
