"""What the benchmarks measure against: upstream's own backends where there is a fork, what they come down to elsewhere."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simpletuner.gh200.backends.tensors.backend import UnifiedCacheTier
from simpletuner.gh200.backends.tensors.cache_kinds import CacheKind
from simpletuner.gh200.backends.tensors.store import CacheStore

_TMPFS = Path("/dev/shm")


class PlainLocal:
    """Opens, reads, unpickles: upstream's local backend without its bookkeeping."""

    type = "local"

    def __init__(self, accelerator: Any, id: str) -> None:
        self.id = id

    def read(self, path: str) -> bytes:
        """As a backend does."""
        with open(path, "rb") as file:
            return file.read()

    def torch_load(self, path: str) -> Any:
        """As a backend does."""
        import torch

        return torch.load(io.BytesIO(self.read(path)), map_location="cpu", weights_only=True)


def local_class() -> type[Any]:
    """SimpleTuner's local backend class."""
    try:
        from simpletuner.helpers.data_backend.local import LocalDataBackend
    except ImportError:
        print("No upstream here: `local` is a plain open, read and torch.load.")
        return PlainLocal
    found: type[Any] = LocalDataBackend
    return found


def local_backend() -> Any:
    """A local backend of SimpleTuner."""
    return local_class()(None, "bench")


def tiered_backend(store: CacheStore, kind: CacheKind, below: type[Any]) -> Any:
    """A backend of that class with the tier before it."""

    class Tiered(UnifiedCacheTier, below):  # type: ignore[misc]
        pass

    tiered = Tiered(None, "bench")
    tiered.attach_store(store, kind)
    return tiered


class TmpfsCopy:
    """A directory copied into memory-backed files by upstream's memory backend, or as it does it where it may not mount."""

    def __init__(self, source: Path) -> None:
        self.how = "upstream's memory backend"
        self._backend = self._directory = None
        try:
            from simpletuner.helpers.data_backend.memory import MemoryDataBackend

            mount = tempfile.mkdtemp(prefix="gh200-bench-")
            self._directory = Path(mount)
            self._backend = MemoryDataBackend(None, "bench", source_path=str(source), mount_path=mount)
        except (ImportError, PermissionError, RuntimeError):
            self.how = "a copy into tmpfs as upstream's memory backend makes it"
            self.close()
            self._directory = Path(tempfile.mkdtemp(prefix="gh200-bench-", dir=_TMPFS if _TMPFS.is_dir() else None))
            shutil.copytree(source, self._directory, dirs_exist_ok=True)
        self.directory = self._directory

    def close(self) -> None:
        """Close its backend."""
        if self._backend is not None:
            self._backend.close()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)


@contextmanager
def in_tmpfs(source: Path) -> Iterator[Path]:
    """A copy of a directory in tmpfs, removed at the end."""
    copy = TmpfsCopy(source)
    try:
        yield copy.directory
    finally:
        copy.close()


def make_files(directory: Path, sizes: list[int]) -> Path:
    """Files of these sizes with incompressible content, a thousand to a directory, as a dataset of any size is spread."""
    directory.mkdir()
    noise = os.urandom(max(sizes) + 4096)
    for number, size in enumerate(sizes):
        parent = directory / f"{number // 1000:04d}"
        parent.mkdir(exist_ok=True)
        start = number % 4096
        (parent / f"{number:07d}.bin").write_bytes(noise[start : start + size])
    return directory
