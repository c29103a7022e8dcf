"""The record behind a word: a small memory file in which a process says what it is doing, how far it is, what came of it.

It is read through the process that owns it, so it is never older than its owner; one that watches keeps it open, and can
still read it when the owner has ended.
"""

from __future__ import annotations

import json
import os
import struct
import threading
from typing import Any, NamedTuple

from .arena import Handle
from .mapping import NAME, map_file, memory_file
from .meeting import GivenWord
from .protocol import Word

_WORDS = tuple(Word)
_PHASES = ("listing", "reading", "indexing", "checking")
_STATE = struct.Struct("<BB6xQQQ")
_LENGTH = struct.Struct("<I")
_INFO, _RESULT, _SIZE = 64, 16 << 10, 64 << 10


class Moment(NamedTuple):
    """How far the owner is; `turn` grows with every sign of life."""

    phase: str
    done: int
    total: int
    turn: int


class OwnRecord:
    def __init__(self, info: dict[str, Any]) -> None:
        self.descriptor = memory_file("word")
        os.ftruncate(self.descriptor, _SIZE)
        self._map = map_file(self.descriptor, writable=True)
        self._turn = 0
        self._lock = threading.Lock()
        self._put(_INFO, info, _RESULT - _INFO)

    def _put(self, position: int, data: dict[str, Any], room: int) -> None:
        text = json.dumps(data).encode()[: room - _LENGTH.size]
        self._map[position + _LENGTH.size : position + _LENGTH.size + len(text)] = text
        _LENGTH.pack_into(self._map, position, len(text))

    def tell(self, phase: str, done: int, total: int) -> None:
        with self._lock:
            self._turn += 1
            number = _PHASES.index(phase) if phase in _PHASES else 0
            word = self._map[0]
            _STATE.pack_into(self._map, 0, word, number, done, total, self._turn)

    def publish(self, handle: Handle) -> None:
        self._put(_RESULT, handle.as_dict(), _SIZE - _RESULT)
        # Last: whoever sees it finds the rest.
        self._map[0] = _WORDS.index(Word.HERE)

    def fail(self, error: str) -> None:
        self._put(_RESULT, {"error": error[: 4 << 10]}, _SIZE - _RESULT)
        self._map[0] = _WORDS.index(Word.FAILED)

    def close(self) -> None:
        self._map.close()
        os.close(self.descriptor)


class SeenRecord:
    """Another process's; raises OSError where that has ended or the system refuses."""

    def __init__(self, word: GivenWord) -> None:
        path = f"/proc/{word.pid}/fd/{word.descriptor}"
        if not os.readlink(path).startswith(f"/memfd:{NAME}-word"):
            raise FileNotFoundError(f"{path} is no record any more")
        self.pid = word.pid
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    @property
    def word(self) -> Word:
        number = os.pread(self._descriptor, 1, 0)[0]
        return _WORDS[number] if number < len(_WORDS) else Word.STAGING

    @property
    def moment(self) -> Moment:
        _, phase, done, total, turn = _STATE.unpack(os.pread(self._descriptor, _STATE.size, 0))
        return Moment(_PHASES[phase % len(_PHASES)], done, total, turn)

    @property
    def info(self) -> dict[str, Any]:
        return self._get(_INFO)

    @property
    def error(self) -> str:
        return str(self._get(_RESULT).get("error", "it gave no reason"))

    @property
    def handle(self) -> Handle:
        """ValueError where it is none: then its owner is not what it says."""
        try:
            return Handle.from_dict(self._get(_RESULT))
        except (TypeError, KeyError) as error:
            raise ValueError(f"the record of process {self.pid} has no handle") from error

    def _get(self, position: int) -> dict[str, Any]:
        (length,) = _LENGTH.unpack(os.pread(self._descriptor, _LENGTH.size, position))
        text = os.pread(self._descriptor, min(length, _SIZE), position + _LENGTH.size)
        try:
            found = json.loads(text)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}
