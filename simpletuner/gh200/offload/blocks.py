"""What torch's allocator has of managed memory: blocks within the budget, placed by kind, counted."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from ..memory.budget import ManagedBudget, shared_counters
from ..memory.driver import HOST, Driver, Place
from .allocator_events import AllocatorEvents
from .native_callbacks import BYTES, CELLS, CONTEXT, MAPPED_FOR, ON_GPU, PEAK, PREFERS, ROW, ROWS, TABLE, callbacks


@dataclass(frozen=True)
class Kind:
    """A kind of memory, and which side its pages prefer."""

    name: str
    on_gpu: bool

    @property
    def place(self) -> str:
        """Where its pages prefer to be, as reports name it."""
        return "managed, prefers the GPU" if self.on_gpu else "managed, prefers the CPU, mapped for the GPU"


class Blocks:
    """The managed blocks of one kind on one device. Native code makes and frees them; Python reads its account."""

    def __init__(self, kind: Kind, driver: Driver, device: int, budget: ManagedBudget) -> None:
        self.kind = kind
        self._cells = shared_counters(CELLS)
        gpu = driver.packed(Place(device))
        self._cells[CONTEXT] = driver.context(device)
        self._cells[ON_GPU] = kind.on_gpu
        self._cells[PREFERS] = gpu if kind.on_gpu else driver.packed(HOST)
        self._cells[MAPPED_FOR] = 0 if kind.on_gpu else gpu
        self._notes, self._turn = AllocatorEvents(kind.name, self._cells, driver, budget), threading.Lock()
        self.addresses = callbacks(driver, int(self._cells.ctypes.data), budget.address)

    @property
    def peak(self) -> int:
        """Most bytes in use at once."""
        return int(self._cells[PEAK])

    def owns(self, base: int) -> bool:
        """Whether a managed allocation that begins here is one of these blocks."""
        return bool((self._rows()[:, 0] == base).any())

    def ranges(self) -> list[tuple[int, int]]:
        """Address and size of each block."""
        return [(start, size) for start, size in self._rows().tolist() if start]

    def tell(self) -> None:
        """What was rejected since the last time, in the log and in the report."""
        with self._turn:
            self._notes.tell()

    def report(self) -> dict[str, Any]:
        """The current state, as JSON."""
        self.tell()
        return {
            "place": self.kind.place,
            "blocks": len(self.ranges()),
            "bytes": int(self._cells[BYTES]),
            "peak_bytes": self.peak,
            "rejected": dict(self._notes.counts),
        }

    def _rows(self) -> Any:
        return self._cells[TABLE:][: ROW * int(self._cells[ROWS])].reshape(-1, ROW)
