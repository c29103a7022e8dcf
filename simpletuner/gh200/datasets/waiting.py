"""What a waiting process shows: whom it waits for, how far that is, and when it will have waited long enough."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from ..memory.limits import spoken_size
from .progress import bar
from .protocol import Came
from .record import Moment, SeenRecord

logger = logging.getLogger("gh200.in_memory")

_SAY_AFTER_SECONDS = 10.0
_STATES = {"T": "is stopped", "t": "is stopped by a debugger", "D": "waits for a disk", "Z": "has ended"}


def state_of(pid: int) -> str:
    """In words, where it says why nothing moves."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "cannot be looked at"
    return _STATES.get(text.rpartition(")")[2].split()[0], "runs")


class Waiting:
    """Bounded by the time without any progress, not by the size of the dataset."""

    def __init__(self, dataset: str, patience: float) -> None:
        self._dataset, self._patience = dataset, patience
        self._seen: tuple[int | None, Moment | None] = (None, None)
        self._since = self._said = time.monotonic()
        self._bars = ExitStack()
        self._bar: Any = None
        self.reason = ""

    def __enter__(self) -> Waiting:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.close()

    def look(self, pid: int | None, record: SeenRecord | None) -> Came:
        """One look at the holder of the claim, which may have none any more."""
        now = time.monotonic()
        seen = (pid, record.moment if record else None)
        if pid is None or seen != self._seen:
            if pid is not None and pid != self._seen[0]:
                what = record.info.get("dataset") if record else None
                logger.info("(id=%s) Waiting for process %s, which stages it%s.", *self._names(pid, what))
            self._seen, self._since, self._said = seen, now, now
            self._show()
            return Came.MOVING
        quiet = now - self._since
        if quiet >= self._patience:
            self.reason = (
                f"Process {pid} holds the claim to stage this folder, but {state_of(pid)} ({self.how_far}) and "
            )
            self.reason += f"has made no progress for {quiet:.0f} s"
            return Came.STALLED
        if now - self._said >= min(_SAY_AFTER_SECONDS, self._patience / 2):
            self._said = now
            logger.warning(
                "(id=%s) Process %s, which stages it, %s: no progress for %.0f s (%s). After %.0f s: from disk.",
                *(self._dataset, pid, state_of(pid), quiet, self.how_far, self._patience),
            )
        return Came.MOVING

    def _names(self, pid: int, what: str | None) -> tuple[str, int, str]:
        return self._dataset, pid, f' as "{what}"' if what and what != self._dataset else ""

    @property
    def how_far(self) -> str:
        moment = self._seen[1]
        if moment is None:
            return "it has not said how far it is"
        if moment.phase == "reading" and moment.total:
            part = moment.done / moment.total
            return f"{moment.phase}: {spoken_size(moment.done)} of {spoken_size(moment.total)}, {part:.0%}"
        return f"{moment.phase}: {moment.done} done" if moment.done else moment.phase

    def _show(self) -> None:
        pid, moment = self._seen
        if moment is None or moment.phase != "reading" or not moment.total:
            return
        if self._bar is None:
            self._bar = self._bars.enter_context(
                bar(f"Waiting for process {pid}: staging {self._dataset}", moment.total)
            )
        self._bar.update(min(moment.done, moment.total) - self._bar.n)
