"""The gradient noise scale, from norms of gradients: unbiased for each window, smoothed over windows, with its interval."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

# Windows the smoothing looks back on, and how many have to be measured before anything is said.
LOOKS_BACK = 64
LEAST_WINDOWS = 16
# Of the standard error: 90 % lie between both ends, so 95 % above the lower one.
Z = 1.6448536269514722


@dataclass(frozen=True)
class WindowNorms:
    """One window of all ranks: squared norms of its micro-batches' mean gradients and of the mean of all of them.

    `inverse_batch` is the mean of 1 / (samples in a micro-batch): batches of different sizes stay unbiased with it.
    """

    count: int
    of_each: float
    of_mean: float
    inverse_batch: float

    @property
    def trace(self) -> float:
        """The variance of one sample's gradient, summed over all weights."""
        return (self.of_each - self.of_mean) / (self.inverse_batch * (1 - 1 / self.count))

    @property
    def signal(self) -> float:
        """The squared norm of the true gradient."""
        return (self.count * self.of_mean - self.of_each) / (self.count - 1)

    @property
    def usable(self) -> bool:
        """Whether a noise scale can be computed from it."""
        return self.count > 1 and math.isfinite(self.of_each) and math.isfinite(self.of_mean)


@dataclass(frozen=True)
class Interval:
    """A noise scale in samples. It has no value where the gradient cannot be distinguished from noise, and may have no upper end."""

    value: float | None
    low: float
    high: float | None


@dataclass(frozen=True)
class SmoothedNoise:
    """Sums over windows in which a window counts less the older it is; plain numbers, so that a checkpoint has them."""

    windows: int = 0
    weight: float = 0.0
    weight_squared: float = 0.0
    trace: float = 0.0
    signal: float = 0.0
    trace_trace: float = 0.0
    trace_signal: float = 0.0
    signal_signal: float = 0.0

    def with_window(self, norms: WindowNorms) -> SmoothedNoise:
        """These sums with one more window."""
        keep, trace, signal = 1 - 1 / LOOKS_BACK, norms.trace, norms.signal
        return SmoothedNoise(
            self.windows + 1,
            keep * self.weight + 1,
            keep * keep * self.weight_squared + 1,
            keep * self.trace + trace,
            keep * self.signal + signal,
            keep * self.trace_trace + trace * trace,
            keep * self.trace_signal + trace * signal,
            keep * self.signal_signal + signal * signal,
        )

    def interval(self) -> Interval | None:
        """Trace over signal with Fieller's interval, which stays right where the signal is close to nothing."""
        if self.windows < LEAST_WINDOWS:
            return None
        trace, signal = self.trace / self.weight, self.signal / self.weight
        share = self.weight_squared / self.weight**2
        spread = Z * Z * share / (1 - share)
        spread_of_signal = spread * max(self.signal_signal / self.weight - signal**2, 0.0)
        covariance = spread * (self.trace_signal / self.weight - trace * signal)
        spread_of_trace = spread * max(self.trace_trace / self.weight - trace**2, 0.0)
        # A square is not negative: below 0 it is an estimate of next to nothing.
        known = max(signal, 0.0)
        ends = _ends(known**2 - spread_of_signal, trace * known - covariance, trace**2 - spread_of_trace)
        # Without an upper end the gradient may be nothing: a quotient would be far below the truth.
        return Interval(trace / signal if signal > 0 and ends[1] is not None else None, *ends)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The sums a checkpoint recorded."""
        return cls(**{field.name: record[field.name] for field in fields(cls)})


def _ends(a: float, b: float, c: float) -> tuple[float, float | None]:
    """Where a r^2 - 2 b r + c is not above 0, for r of at least 0."""
    inside = b * b - a * c
    if inside < 0 or a == 0:
        return 0.0, None
    root = math.sqrt(inside)
    low = max((b - root) / a, 0.0)
    # With a below 0 the signal may be nothing: everything from the lower end on is possible.
    return (low, max((b + root) / a, 0.0)) if a > 0 else (low, None)
