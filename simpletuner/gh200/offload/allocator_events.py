"""What native code noted and could not say: in words, each thing once."""

from __future__ import annotations

import logging
from collections import Counter

from ..memory.budget import Cells, ManagedBudget
from ..memory.driver import Driver
from ..memory.limits import format_size
from .native_callbacks import (
    ADVISE,
    ALLOCATE,
    FREE,
    INFO,
    KINDS_OF_NOTE,
    NOTE,
    NOTES,
    OVER_AVAILABLE,
    OVER_LIMIT,
    OVER_TABLE,
    POP,
    PUSH,
)

logger = logging.getLogger("gh200.pools")

_CALLS = {
    INFO: "cuMemGetInfo",
    PUSH: "cuCtxPushCurrent",
    POP: "cuCtxPopCurrent",
    ALLOCATE: "cuMemAllocManaged",
    ADVISE: "cuMemAdvise",
    FREE: "cuMemFree",
}


class AllocatorEvents:
    """Of one kind of memory. Read by one thread at a time; native code may write meanwhile."""

    def __init__(self, kind: str, cells: Cells, driver: Driver, budget: ManagedBudget) -> None:
        self._kind, self._cells, self._driver, self._budget = kind, cells, driver, budget
        self._read = dict.fromkeys(KINDS_OF_NOTE, 0)
        self._words: dict[tuple[int, int], str] = {}
        self.counts: Counter[str] = Counter()

    def tell(self) -> None:
        """Logs each event once and counts all of them."""
        for note in KINDS_OF_NOTE:
            count, size, detail = (int(cell) for cell in self._cells[NOTES + NOTE * note :][:NOTE])
            if count == self._read[note]:
                continue
            # How full a bound is differs every time; the driver's answers are few.
            which = (note, detail if note in _CALLS else 0)
            first = which not in self._words
            words = self._words.setdefault(which, f"{self._outcome(note)}: {self._why(note, detail)}")
            self.counts[words] += count - self._read[note]
            self._read[note] = count
            if first:
                so = "; torch reports that it is out of memory" if words.startswith("rejected") else ""
                logger.warning("GH200 managed memory: %s for %s %s%s", format_size(size), self._kind, words, so)

    def _outcome(self, note: int) -> str:
        return {ADVISE: "has no advice", FREE: "is not freed", POP: "leaves a context behind"}.get(note, "rejected")

    def _why(self, note: int, detail: int) -> str:
        if note == OVER_LIMIT:
            return self._budget.over_limit(detail)
        if note == OVER_AVAILABLE:
            return self._budget.over_available(detail)
        if note == OVER_TABLE:
            return f"there are {detail} blocks already, more than are kept account of"
        return str(self._driver.error(_CALLS[note], detail))
