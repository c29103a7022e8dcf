"""How far a staging is: one object, shown by the bar of the process that stages and read by those that wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Told = Callable[[str, int, int], None]


def nobody(phase: str, done: int, total: int) -> None:
    """For a staging that nobody waits for."""


class Progress:
    """Counts bytes from all threads."""

    def __init__(self, told: Told = nobody) -> None:
        self.phase, self.done, self.total = "listing", 0, 0
        self._told = told
        self._lock = threading.Lock()

    def begin(self, phase: str, total: int = 0) -> None:
        with self._lock:
            self.phase, self.done, self.total = phase, 0, total
            self._told(phase, 0, total)

    def move(self, size: int) -> None:
        with self._lock:
            self.done += size
            self._told(self.phase, self.done, self.total)


@contextmanager
def bar(text: str, total: int) -> Iterator[Any]:
    from tqdm import tqdm

    with tqdm(total=total, unit="B", unit_scale=True, desc=text, mininterval=0.5) as shown:
        yield shown
