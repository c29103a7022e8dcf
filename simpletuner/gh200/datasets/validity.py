"""What all that attach to an arena may change: which files are forgotten, and when which part was last checked."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from enum import IntEnum

# Names that are checked together; ranks that check at the same time share the work by these.
CHUNK = 1024


class Reason(IntEnum):
    """Why a file is no longer read from RAM."""

    WRITTEN = 1
    CHANGED = 2
    REPLACED = 3
    GONE = 4
    FORBIDDEN = 5

    @property
    def text(self) -> str:
        return _TEXTS[self]


_TEXTS = {
    Reason.WRITTEN: "written or deleted through a backend",
    Reason.CHANGED: "size or time of change differs",
    Reason.REPLACED: "other content under the same size and time",
    Reason.GONE: "it is gone, or its folder cannot be entered",
    Reason.FORBIDDEN: "no permission to read it",
}


def chunks_of(names: int) -> int:
    return -(-names // CHUNK)


def validity_bytes(files: int, names: int) -> int:
    return 8 + 8 * chunks_of(names) + 9 * files


class Validity:
    """A byte per file, its accepted time of change, and a stamp per chunk of names; single stores, so without locks."""

    def __init__(self, mapped: mmap.mmap, files: int, names: int) -> None:
        view = memoryview(mapped)
        stamps = 8 + 8 * chunks_of(names)
        self._found = view[:8].cast("Q")
        self.stamps = view[8:stamps].cast("Q")
        self.ctimes = view[stamps : stamps + 8 * files].cast("q")
        self.flags = view[stamps + 8 * files : stamps + 9 * files]

    def start(self, ctimes: Sequence[int]) -> None:
        for number, ctime in enumerate(ctimes):
            self.ctimes[number] = ctime

    def forget(self, number: int, reason: Reason = Reason.WRITTEN) -> None:
        if not self.flags[number]:
            self.flags[number] = reason
            if reason is not Reason.WRITTEN:
                # A lost count would only delay a report: the flag itself is what readers look at.
                self._found[0] += 1

    @property
    def found(self) -> int:
        """How many files checks have found changed, in all processes."""
        return self._found[0]

    def changed(self) -> Iterator[tuple[int, Reason]]:
        """Files that a check has found changed, whoever did."""
        for number, flag in enumerate(self.flags):
            if flag > Reason.WRITTEN:
                yield number, Reason(flag)
