"""The times of a million caption files in one call: Python's own takes longer over each answer than the kernel does."""

from __future__ import annotations

import logging
import os
from array import array
from typing import Any

import numpy as np

from .record import STAT_FACTS
from .text import PackedPaths

logger = logging.getLogger("gh200.start")

# Below this, loading the compiler's library costs more than it saves.
WORTH_IT = 500_000
# The kernel's own layout of a statx answer, in words of eight bytes; of some the lower half is a number of its own.
_WORDS, _INODE, _SIZE, _CHANGED, _MODIFIED, _DEVICE = 32, 4, 5, 12, 14, 17
_ASKED = 0x3C0
_SUFFIX = np.frombuffer(b".txt\0", np.uint8)
_LONGEST = 4096
# Whole paths need no folder.
_FROM_HERE = -100


def caption_stats(pictures: PackedPaths) -> array[int] | None:
    """As `stats_of` their caption files; None where those must be asked for one by one. OSError where one is missing."""
    if pictures.count < WORTH_IT:
        return None
    try:
        ask = _compiled()
    except Exception as error:
        logger.info("Caption files are looked at one by one: %s: %s", type(error).__name__, error)
        return None
    found = np.zeros(pictures.count * STAT_FACTS, np.int64)
    name, answer = np.zeros(_LONGEST, np.uint8), np.zeros(_WORDS, np.int64)
    done = 0
    for folder, names in pictures.folders:
        if not names:
            continue
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY) if folder else _FROM_HERE
        try:
            count = ask(at, np.frombuffer(names, np.uint8), _SUFFIX, name, answer, found[done * STAT_FACTS :])
        finally:
            if folder:
                os.close(at)
        if count < 0:
            raise FileNotFoundError(folder)
        done += count
    return array("q", found.tobytes())


def _compiled() -> Any:
    from numba import njit, types

    word, words, texts = types.int64, types.int64[::1], types.Array(types.uint8, 1, "C", readonly=True)
    # By name, so that what was compiled can be kept for the next process.
    statx: Any = types.ExternalFunction("statx", types.int32(types.int32, word, types.int32, types.uint32, word))
    dot, slash, low = ord("."), ord("/"), 0xFFFFFFFF

    @njit(word(types.int32, texts, texts, types.uint8[::1], words, words), cache=True)
    def ask(at: Any, names: Any, suffix: Any, name: Any, answer: Any, found: Any) -> Any:
        count = start = 0
        while start < names.size:
            end, last, plain = start, -1, False
            # As `os.path.splitext`: dots that a name begins with begin no suffix.
            while end < names.size and names[end] != 0:
                if end - start >= name.size - suffix.size:
                    return -1
                if names[end] == slash:
                    last, plain = -1, False
                elif names[end] != dot:
                    plain = True
                elif plain:
                    last = end - start
                name[end - start] = names[end]
                end += 1
            stem = last if last >= 0 else end - start
            for place in range(suffix.size):
                name[stem + place] = suffix[place]
            if statx(at, name.ctypes.data, 0, _ASKED, answer.ctypes.data):
                return -1
            major, minor = answer[_DEVICE] & low, answer[_DEVICE] >> 32 & low
            to = count * STAT_FACTS
            found[to] = answer[_MODIFIED] * 10**9 + (answer[_MODIFIED + 1] & low)
            found[to + 1] = answer[_CHANGED] * 10**9 + (answer[_CHANGED + 1] & low)
            found[to + 2] = answer[_SIZE]
            found[to + 3] = answer[_INODE]
            # As C's `makedev`.
            found[to + 4] = (
                (major & 0xFFF) << 8 | (major & 0xFFFFF000) << 32 | minor & 0xFF | (minor & 0xFFFFFF00) << 12
            )
            count += 1
            start = end + 1
        return count

    return ask
