"""Arithmetic of a job: which resolution, which window, and repeats that let every bucket fill it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import ceil, isqrt
from statistics import median

from ..preflight.buckets import Rules, Size

STEP = 64
FEWEST_EDGE = 256
_WINDOWS = ((50, 4), (500, 8), (5000, 16))
_LARGEST_WINDOW = 32


@dataclass(frozen=True)
class Buckets:
    """Images by shape, and how often all of them are repeated."""

    counts: Mapping[str, int]
    repeats: int


def resolution_for(sizes: Collection[Size], edge: int) -> tuple[int, str]:
    """What the model was made for, or less where the images are smaller: enlarging teaches blur."""
    usual = median(isqrt(width * height) for width, height in sizes)
    least = min(edge, FEWEST_EDGE)
    fits = max(least, int(usual) // STEP * STEP)
    if fits >= edge:
        return edge, f"the model's own {edge}"
    return (
        fits,
        f"half of the images are smaller than {int(usual) + 1}x{int(usual) + 1}; the model was made for {edge}",
    )


def window_for(images: int, unit: int) -> int:
    """The target effective batch: larger sets take larger ones, in whole micro-batches."""
    wanted = next((window for limit, window in _WINDOWS if images < limit), _LARGEST_WINDOW)
    return max(1, wanted // unit) * unit


def buckets_for(sizes: Collection[Size], rules: Rules, window: int, least: int = 0) -> Buckets:
    """Shapes as they are. Repeats are for all images alike, so a rare shape does not come more often than others."""
    counts = dict(sorted(Counter(rules.bucket(size) for size in sizes).items()))
    return Buckets(counts, max(least, ceil(window / min(counts.values())) - 1))


def steps_for(images: int, window: int) -> int:
    """About forty looks at every image, and neither too few nor too many updates to learn from."""
    return max(500, min(5000, round(images * 40 / window / 50) * 50))
