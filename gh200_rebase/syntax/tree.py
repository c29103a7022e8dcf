"""Read-only views of a source tree, so that every step can run on a directory or in memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Protocol

SKIPPED_DIRECTORIES = frozenset({".git", "__pycache__"})


class Tree(Protocol):
    """Paths are posix and relative to the root."""

    def read(self, path: str) -> bytes | None:
        """The bytes of a file, None if there is none."""

    def paths(self) -> list[str]:
        """Paths of all files, sorted."""

    def has_directory(self, path: str) -> bool:
        """Whether a directory exists and is not empty."""


class DirectoryTree:
    """A directory on disk; a path that leads out of it, by `..` or by a link, does not exist."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def read(self, path: str) -> bytes | None:
        full = (self.root / path).resolve()
        if not full.is_relative_to(self.root) or not full.is_file():
            return None
        return full.read_bytes()

    def paths(self) -> list[str]:
        found: list[str] = []
        prefix = len(str(self.root)) + 1
        for directory, directories, files in os.walk(self.root):
            directories[:] = [name for name in directories if name not in SKIPPED_DIRECTORIES]
            found += [f"{directory}/{name}"[prefix:] for name in files]
        return sorted(found)

    def has_directory(self, path: str) -> bool:
        full = (self.root / path).resolve()
        return full.is_relative_to(self.root) and full.is_dir() and any(full.iterdir())


class MemoryTree:
    """Files in a dict."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = dict(files)

    def read(self, path: str) -> bytes | None:
        return self.files.get(path)

    def paths(self) -> list[str]:
        return sorted(self.files)

    def has_directory(self, path: str) -> bool:
        return path in self._directories

    @cached_property
    def _directories(self) -> frozenset[str]:
        return frozenset(str(parent) for path in self.files for parent in PurePosixPath(path).parents)


class ChangedTree:
    """A tree with some files replaced or added."""

    def __init__(self, base: Tree, changed: Mapping[str, bytes]) -> None:
        self.base, self.changed = base, dict(changed)

    def read(self, path: str) -> bytes | None:
        return self.changed[path] if path in self.changed else self.base.read(path)

    def paths(self) -> list[str]:
        return sorted({*self.base.paths(), *self.changed})

    def has_directory(self, path: str) -> bool:
        return self.base.has_directory(path) or any(name.startswith(f"{path}/") for name in self.changed)
