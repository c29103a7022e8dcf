"""How much of the gradient's variance the timestep explains, from inner products of a window's gradients.

The mean product of two micro-batches' gradients is a product of the mean gradients at their timesteps. It is a linear
function of one small matrix (quarter of the schedule x quarter), which least squares finds from many windows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .noise import LOOKS_BACK

QUARTERS = 4
SCHEDULE_LENGTH = 1000
_ROWS, _COLUMNS = np.triu_indices(QUARTERS)
UNKNOWNS = len(_ROWS)
# What one window adds: the normal equations, and how often each quarter was drawn.
SIZE = UNKNOWNS * UNKNOWNS + UNKNOWNS + QUARTERS
_Array = npt.NDArray[np.float64]


def shares(timesteps: Sequence[float]) -> _Array:
    """Which part of a micro-batch lies in each quarter of the schedule."""
    places = [min(max(int(step * QUARTERS / SCHEDULE_LENGTH), 0), QUARTERS - 1) for step in timesteps]
    return np.bincount(places, minlength=QUARTERS) / max(len(places), 1)


def equations(drawn: Sequence[_Array], products: Sequence[float]) -> _Array:
    """One window of one rank: `products[k]` is the gradient of micro-batch k + 1 times the sum of those before it."""
    matrix, right = np.zeros((UNKNOWNS, UNKNOWNS)), np.zeros(UNKNOWNS)
    before = np.zeros(QUARTERS)
    for micro_batch, earlier, product in zip(drawn[1:], drawn, products, strict=False):
        before = before + earlier
        both = np.outer(before, micro_batch)
        both = both + both.T
        row = both[_ROWS, _COLUMNS] * np.where(_ROWS == _COLUMNS, 0.5, 1.0)
        matrix += np.outer(row, row)
        right += product * row
    return np.concatenate([matrix.ravel(), right, np.sum(drawn, axis=0)])


@dataclass(frozen=True)
class TimestepPart:
    """Sums over windows, older ones counting less."""

    sums: tuple[float, ...] = (0.0,) * SIZE

    def with_window(self, added: Sequence[float]) -> TimestepPart:
        keep = 1 - 1 / LOOKS_BACK
        return TimestepPart(tuple(keep * old + new for old, new in zip(self.sums, added, strict=True)))

    def explained(self, trace: float) -> float | None:
        """The part of `trace`, or nothing while some pair of quarters was never seen together."""
        sums = np.asarray(self.sums)
        matrix = sums[: UNKNOWNS * UNKNOWNS].reshape(UNKNOWNS, UNKNOWNS)
        right, drawn = sums[UNKNOWNS * UNKNOWNS : -QUARTERS], sums[-QUARTERS:]
        seen = drawn > 0
        used = seen[_ROWS] & seen[_COLUMNS]
        matrix = matrix[np.ix_(used, used)]
        if seen.sum() < 2 or np.linalg.matrix_rank(matrix) < len(matrix) or trace <= 0:
            return None
        products = np.zeros(UNKNOWNS)
        products[used] = np.linalg.solve(matrix, right[used])
        square = np.zeros((QUARTERS, QUARTERS))
        square[_ROWS, _COLUMNS] = square[_COLUMNS, _ROWS] = products
        drawn = drawn / drawn.sum()
        return float((drawn @ np.diag(square) - drawn @ square @ drawn) / trace)

    def record(self) -> list[float]:
        return list(self.sums)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> TimestepPart:
        sums = tuple(map(float, record["timesteps"]))
        if len(sums) != SIZE:
            raise ValueError(f"timesteps has {len(sums)} numbers, not {SIZE}")
        return cls(sums)
