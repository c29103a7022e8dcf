"""Several files with two calls that do not hold the GIL: one opens and looks at them all, one reads and closes them all.

Python's own calls let go of the GIL and take it again for every file four times; where several threads read, and the trainer
loads its models beside them, they wait for each other longer than for the files.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

logger = logging.getLogger("gh200.cache")

# The kernel's own layout of a statx answer, in words of eight bytes; the nanoseconds are the lower half of theirs.
_WORDS, _INODE, _SIZE, _SECONDS, _NANOSECONDS = 32, 4, 5, 14, 15
_AT_EMPTY_PATH, _BASIC = 0x1000, 0x7FF
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC
_THIS_FILE = ctypes.create_string_buffer(b"")


class Native(NamedTuple):
    open_all: Callable[..., None]
    read_all: Callable[..., None]


class OpenFile(NamedTuple):
    size: int
    signature: tuple[int, int, int]


_lock = threading.Lock()
_native: list[Native | None] = []


def prepared() -> Native | None:
    """The two calls, compiled once per machine and loaded once per process; None where they cannot be had."""
    with _lock:
        if not _native:
            try:
                _native.append(_compiled())
            except Exception as error:
                # Everything is read all the same, one by one.
                logger.info("GH200 caches: files are read one by one: %s: %s", type(error).__name__, error)
                _native.append(None)
        return _native[0]


def _compiled() -> Native:
    from numba import njit, types

    word, words = types.int64, types.int64[::1]
    # By name, so that what was compiled can be kept for the next process.
    c_open: Any = types.ExternalFunction("open", types.int32(word, types.int32))
    c_statx: Any = types.ExternalFunction("statx", types.int32(types.int32, word, types.int32, types.uint32, word))
    c_preadv: Any = types.ExternalFunction("preadv", word(types.int32, word, types.int32, word))
    c_close: Any = types.ExternalFunction("close", types.int32(types.int32))

    @njit(types.void(words, words, words, word), nogil=True, cache=True)
    def open_all(paths: Any, files: Any, found: Any, this_file: Any) -> None:
        for number in range(paths.size):
            file = c_open(paths[number], _OPEN_FLAGS)
            if file >= 0 and c_statx(file, this_file, _AT_EMPTY_PATH, _BASIC, found[number * _WORDS :].ctypes.data):
                c_close(file)
                file = -1
            files[number] = file

    @njit(types.void(words, words, words, words), nogil=True, cache=True)
    def read_all(files: Any, pieces: Any, counts: Any, got: Any) -> None:
        first = 0
        for number in range(files.size):
            if files[number] < 0:
                continue
            if counts[number]:
                got[number] = c_preadv(files[number], pieces[first:].ctypes.data, counts[number], 0)
                first += 2 * counts[number]
            c_close(files[number])
            files[number] = -1

    return Native(open_all, read_all)


class OpenFiles:
    """Files that are open until they are read, or until the end of the `with`."""

    def __init__(self, native: Native, paths: Sequence[str]) -> None:
        self._native, count = native, len(paths)
        names = [os.fsencode(path) for path in paths]
        places = [ctypes.cast(ctypes.c_char_p(name), ctypes.c_void_p).value for name in names]
        self._files = np.full(count, -1, np.int64)
        self._found = np.zeros(count * _WORDS, np.int64)
        native.open_all(np.array(places, np.int64), self._files, self._found, ctypes.addressof(_THIS_FILE))

    def __enter__(self) -> OpenFiles:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files[self._files >= 0]:
            os.close(int(file))

    def seen(self) -> list[OpenFile | None]:
        """What each was when it was opened; None for one that could not be."""
        found: list[list[int]] = self._found.reshape(-1, _WORDS).tolist()
        return [
            None
            if file < 0
            else OpenFile(
                one[_SIZE],
                (one[_SECONDS] * 10**9 + (one[_NANOSECONDS] & 0xFFFFFFFF), one[_SIZE], one[_INODE]),
            )
            for file, one in zip(self._files.tolist(), found, strict=True)
        ]

    def read(self, pieces: list[list[int]]) -> list[int]:
        """Each file from its beginning into its pieces, addresses and sizes in turn; the bytes read, -1 where there were none."""
        got = np.full(len(pieces), -1, np.int64)
        counts = np.array([len(one) // 2 for one in pieces], np.int64)
        flat = np.array([number for one in pieces for number in one], np.int64)
        self._native.read_all(self._files, flat, counts, got)
        return list(got.tolist())
