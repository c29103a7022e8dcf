"""The thread that makes records: it sleeps, looks, appends a line, and keeps itself within half a percent of the time."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

from .files import append
from .record import Cost, Kind, Record

logger = logging.getLogger("gh200.telemetry")

MOST_CPU = 0.005  # of the time that has passed
# The first step's, the last step's and the end's come whatever was spent, and one of an interval goes before them.
_OWED = 4
_END_WAIT = 5.0


class Recorder:
    """`read` makes a record of one kind; nothing it does, and no full disk, reaches the training loop."""

    def __init__(self, path: Path, interval: float, read: Callable[[Kind, float, Cost], Record]) -> None:
        self.path, self._interval, self._read = path, interval, read
        self.latest: Record | None = None
        self._orders: queue.SimpleQueue[tuple[Kind, threading.Event]] = queue.SimpleQueue()
        self._began = time.monotonic()
        self._cpu = self._dearest = 0.0
        self._made = self._lost = 0
        self._said: set[str] = set()
        self._thread = threading.Thread(target=self._work, name="gh200-telemetry", daemon=True)

    def start(self) -> None:
        """Write the first record and start the thread."""
        self._orders.put(("start", threading.Event()))
        self._thread.start()

    def now(self, kind: Kind, wait: float) -> Record | None:
        """A record of this moment; None where it takes longer than a training step may wait for it."""
        done = threading.Event()
        self._orders.put((kind, done))
        return self.latest if done.wait(wait) else None

    def end(self) -> None:
        """The last record, and what all of them took."""
        if not self._thread.is_alive():
            return
        self._orders.put(("end", threading.Event()))
        self._thread.join(_END_WAIT)
        cost = self._cost()
        text = "GH200 telemetry: %d records in %s%s; its thread took %.2f s of CPU in %.0f s (%.2f %%)"
        lost = f", {self._lost} more could not be written" if self._lost else ""
        logger.info(text, self._made, self.path, lost, cost.cpu_seconds, cost.wall_seconds, cost.percent)

    def say(self, once: str, message: str) -> None:
        """Log a message once per kind."""
        if once not in self._said:
            self._said.add(once)
            logger.warning("GH200 telemetry: %s; training goes on", message)

    def _work(self) -> None:
        while True:
            try:
                kind, done = self._orders.get(timeout=self._pause())
            except queue.Empty:
                kind, done = "interval", threading.Event()
            try:
                self._take(kind)
            except Exception as error:
                self.say("record", f"a record could not be made: {type(error).__name__}: {error}")
            before, self._cpu = self._cpu, time.thread_time()
            self._dearest = max(self._dearest, self._cpu - before)
            done.set()
            if kind == "end":
                return

    def _pause(self) -> float:
        """The interval, or longer where what was spent, and what the run still owes, would be more than its share."""
        elapsed = time.monotonic() - self._began
        return max(self._interval, (self._cpu + _OWED * self._dearest) / MOST_CPU - elapsed)

    def _cost(self) -> Cost:
        wall = max(time.monotonic() - self._began, 1e-9)
        percent = 100 * self._cpu / wall
        return Cost(
            cpu_seconds=round(self._cpu, 4), wall_seconds=round(wall, 2), percent=round(percent, 3), lost=self._lost
        )

    def _take(self, kind: Kind) -> None:
        self._cpu = time.thread_time()
        self.latest = record = self._read(kind, self._pause(), self._cost())
        try:
            append(self.path, record.line())
            self._made += 1
        except OSError as error:
            self._lost += 1
            self.say(f"write {error.errno}", f"{self.path} cannot be written: {error.strerror or error}")
