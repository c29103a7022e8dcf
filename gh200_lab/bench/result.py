"""What a benchmark gives: ratios with spread and target, and series of cost against size; as lines and as JSON."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Samples = Sequence[float]


@dataclass(frozen=True)
class BenchSettings:
    """How much to measure. Quick is for trying the benchmark out, not for measurements."""

    rounds: int = 5
    quick: bool = False
    directory: str | None = None
    million: bool = False


def spread(values: Samples) -> tuple[float, float, float]:
    """Median, tenth and ninetieth percentile; with few values the smallest and largest."""
    ordered, tail = sorted(values), (len(values) - 1) // 10
    return statistics.median(ordered), ordered[tail], ordered[-1 - tail]


@dataclass(frozen=True)
class Ratio:
    """One figure over interleaved rounds, and what it should be; without a target it is only reported."""

    what: str
    values: tuple[float, ...]
    target: float | None = None
    at_least: bool = True

    @property
    def met(self) -> bool:
        """Whether the target is met."""
        median = spread(self.values)[0]
        return self.target is None or (median >= self.target if self.at_least else median <= self.target)

    def lines(self) -> list[str]:
        """Rows of the table."""
        median, low, high = spread(self.values)
        target = "reported" if self.target is None else f"{'>=' if self.at_least else '<='} {self.target:g}"
        verdict = "" if self.target is None else "met" if self.met else "NOT MET"
        return [f"{self.what:<70} {median:>9.2f}  {f'{low:.2f} .. {high:.2f}':>20}  {target:<9} {verdict}".rstrip()]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        median, low, high = spread(self.values)
        sign = None if self.target is None else ">=" if self.at_least else "<="
        values = {"what": self.what, "median": median, "low": low, "high": high, "rounds": len(self.values)}
        return values | {"sign": sign, "target": self.target, "met": self.met}


@dataclass(frozen=True)
class Series:
    """The cost of one thing at several sizes, for each peer: what the plot shows."""

    what: str
    size: str
    peers: Mapping[str, Mapping[int, Samples]]

    def lines(self) -> list[str]:
        """Rows of the table."""
        sizes = sorted({size for costs in self.peers.values() for size in costs})
        rows = [
            f"{self.what} (median, microseconds); {self.size}:",
            " " * 28 + "".join(f"{size:>12}" for size in sizes),
        ]
        for peer, costs in self.peers.items():
            cells = (f"{spread(costs[size])[0]:>12.2f}" if size in costs else f"{'-':>12}" for size in sizes)
            rows.append(f"  {peer:<26}" + "".join(cells))
        return rows

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        peers = {
            peer: {
                size: dict(zip(("median", "low", "high"), spread(values), strict=True))
                for size, values in costs.items()
            }
            for peer, costs in self.peers.items()
        }
        return {"what": self.what, "size": self.size, "unit": "us", "peers": peers}


Result = Ratio | Series


def seconds(action: Callable[..., object], *arguments: Any) -> float:
    """Seconds that a call takes."""
    began = time.perf_counter()
    result = action(*arguments)
    taken = time.perf_counter() - began
    # Giving memory back is not part of what is measured.
    del result
    return taken


def over(first: Samples, second: Samples) -> tuple[float, ...]:
    """The ratio of each round: what one took over what the other took right beside it."""
    return tuple(one / other for one, other in zip(first, second, strict=True))


def in_turn(actions: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every action, all of them once per round: what else the machine does falls on each."""
    taken: dict[str, list[float]] = {name: [] for name in actions}
    for action in actions.values():
        action()
    for _ in range(rounds):
        for name, action in actions.items():
            taken[name].append(seconds(action))
    return taken
