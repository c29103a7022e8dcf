"""What one backend sees of an arena: its own folder, under the name it was given, which may lie inside the staged one."""

from __future__ import annotations

import os
from typing import Any

from .arena import SharedArena
from .listing import is_rewritten


class StagedFolder:
    def __init__(self, arena: SharedArena, root: str) -> None:
        self.arena, self.root = arena, root
        real = os.path.realpath(root)
        below = os.path.relpath(real, arena.root)
        self._below = b"" if below == "." else os.fsencode(below) + b"/"
        given = os.path.abspath(root)
        self._prefixes = tuple({spelled.rstrip("/") + "/": None for spelled in (given, real)})

    def find(self, path: str) -> int | None:
        """The number of a staged file; None where it never was staged or has been forgotten."""
        for prefix in self._prefixes:
            if path.startswith(prefix):
                return self.arena.lookup(self._below + os.fsencode(path[len(prefix) :]))
        return None

    def is_new(self, path: str) -> bool:
        """Whether a file of the folder was not there when it was listed, under this name or another."""
        path = os.path.normpath(path)
        prefix = next((prefix for prefix in self._prefixes if path.startswith(prefix)), None)
        if prefix is None or is_rewritten(os.path.basename(path)):
            return False
        index = self.arena.index
        if index.number(self._below + os.fsencode(path[len(prefix) :])) is not None:
            return False
        try:
            status = os.stat(path)
        except OSError:
            return False
        return index.file(status.st_dev, status.st_ino) is None

    def is_staged(self) -> bool:
        """Whether anything of it is in the arena: an outer folder's listing may have reached it by another name."""
        below = self._below
        return not below or any(name.startswith(below) for name, _ in self.arena.index.names())


def lies_in(inner: str, outer: str) -> bool:
    """Both as real paths; a folder lies in itself."""
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
