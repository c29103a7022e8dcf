"""A file that one backend writes or deletes is forgotten in every arena of this user on the machine.

Other arenas than a backend's own hold the same file where folders lie in each other, ranks are bound to several nodes, or
two runs use two codecs. They are found by the words their processes have given.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
from typing import Any

from ..errors import GH200Error
from .arena import ArenaNames, attach_names, open_here
from .meeting import GivenWord, meeting_file
from .places import meeting_files
from .protocol import Word
from .record import SeenRecord

logger = logging.getLogger("gh200.in_memory")


class Elsewhere:
    """The arenas of other processes, opened once and kept while their words are."""

    def __init__(self) -> None:
        self._names: dict[GivenWord, ArenaNames] = {}
        self._lock = threading.Lock()

    def arenas(self) -> list[ArenaNames]:
        with self._lock:
            words = [word for path in meeting_files() for word in _words(path)]
            self._names = {word: names for word in words if (names := self._names.get(word) or _opened(word))}
            return list({names.digest: names for names in self._names.values()}.values())


def _words(path: Any) -> list[GivenWord]:
    try:
        return meeting_file(path).words()
    except OSError:
        return []


def _opened(word: GivenWord) -> ArenaNames | None:
    """None while it stages: it looks for changed files itself, once its word is given."""
    try:
        record = SeenRecord(word)
        return attach_names(record.handle) if record.word is Word.HERE else None
    except (OSError, ValueError, GH200Error) as error:
        logger.debug("The dataset in RAM of process %s cannot be looked at: %s", word.pid, error)
        return None


_elsewhere = Elsewhere()


def _in_a_child() -> None:
    global _elsewhere
    _elsewhere = Elsewhere()


os.register_at_fork(after_in_child=_in_a_child)


class Change:
    """A file that is about to be written or deleted: what it may be called in an arena, and what it is."""

    def __init__(self, filepath: Any) -> None:
        self._paths: set[str] = set()
        self._identity: tuple[int, int] | None = None
        try:
            path = os.fsdecode(os.path.abspath(filepath))
            folder, name = os.path.split(path)
            self._paths = {path, os.path.join(os.path.realpath(folder), name), os.path.realpath(path)}
            status = os.stat(filepath)
        except (OSError, ValueError, TypeError):
            # Nothing is there: only a name that was staged, and has been gone since, can be meant.
            return
        if stat.S_ISREG(status.st_mode):
            self._identity = (status.st_dev, status.st_ino)

    def forget_everywhere(self) -> None:
        for arena in (*open_here(), *_elsewhere.arenas()):
            for path in self._paths:
                number = arena.find(path)
                if number is not None:
                    arena.forget(number)
            if self._identity is not None:
                arena.forget_file(*self._identity)
