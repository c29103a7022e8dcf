"""What every benchmark prints: a ratio over interleaved rounds, with its spread and its target."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ROUNDS = 5


@dataclass(frozen=True)
class Ratio:
    """One line of the result: how often the second thing fits into the first, over interleaved rounds."""

    what: str
    values: tuple[float, ...]
    target: float
    at_least: bool = True

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def met(self) -> bool:
        return self.median >= self.target if self.at_least else self.median <= self.target

    def line(self) -> str:
        sign = ">=" if self.at_least else "<="
        spread = f"{min(self.values):.2f} .. {max(self.values):.2f}"
        verdict = "met" if self.met else "NOT MET"
        return f"{self.what:<66} {self.median:>7.2f}  {spread:>16}  {sign} {self.target:<5} {verdict}"


def seconds(action: Callable[..., object], *arguments: Any) -> float:
    began = time.perf_counter()
    result = action(*arguments)
    taken = time.perf_counter() - began
    # Giving memory back is not part of what is measured.
    del result
    return taken
