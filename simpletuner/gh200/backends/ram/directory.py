"""What one backend sees of an arena: its directory, under the name it was given and under its real one."""

from __future__ import annotations

import os
from typing import Any

from .arena import SharedArena
from .listing import is_rewritten


class StagedDirectory:
    """A directory of an arena under both of its names."""

    def __init__(self, arena: SharedArena, root: str) -> None:
        self.arena = arena
        self._prefixes = tuple({spelled.rstrip("/") + "/": None for spelled in (root, arena.root)})

    def _name(self, path: str) -> bytes | None:
        prefix = next((prefix for prefix in self._prefixes if path.startswith(prefix)), None)
        return None if prefix is None else os.fsencode(path[len(prefix) :])

    def find(self, path: str) -> int | None:
        """The number of a staged file; None where it never was staged or has been forgotten."""
        name = self._name(path)
        return None if name is None else self.arena.lookup(name)

    def is_new(self, path: str) -> bool:
        """Whether a file of the directory was not there when it was listed, under this name or another."""
        name = self._name(os.path.normpath(path))
        if name is None or is_rewritten(os.path.basename(path)) or self.arena.index.number(name) is not None:
            return False
        try:
            status = os.stat(path)
        except OSError:
            return False
        return self.arena.index.file(status.st_dev, status.st_ino) is None


def lies_in(inner: str, outer: str) -> bool:
    """Both as real paths; a directory lies in itself."""
    return inner == outer or inner.startswith(outer.rstrip("/") + "/")


def listed(filepath: Any) -> str:
    """The spelling of the listing; others (`..`, a slash at the end, bytes) no arena knows: they are the system's."""
    try:
        path = os.fspath(filepath)
    except TypeError:
        return ""
    if not isinstance(path, str):
        return ""
    return path if path.startswith("/") else os.path.join(os.getcwd(), path)
