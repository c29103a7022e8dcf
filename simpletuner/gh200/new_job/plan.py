"""Arithmetic of a job: which resolution and buckets, how many repeats, and a window every bucket can fill."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import ceil, isqrt
from statistics import median

from ..preflight.buckets import Rules, Size

STEP = 64
FEWEST_EDGE = 256
MOST_REPEATS = 9
MOST_ASPECTS = 8
_WINDOWS = ((50, 4), (500, 8), (5000, 16))
_LARGEST_WINDOW = 32


@dataclass(frozen=True)
class Buckets:
    """How the pictures are cut and how often they are repeated; `aspects` is empty where none is cut to another shape."""

    aspects: tuple[float, ...]
    counts: Mapping[str, int]
    repeats: int
    why: str


def resolution_for(sizes: Collection[Size], edge: int) -> tuple[int, str]:
    """What the model was made for, or less where the pictures are smaller: enlarging teaches blur."""
    usual = median(isqrt(width * height) for width, height in sizes)
    least = min(edge, FEWEST_EDGE)
    fits = max(least, int(usual) // STEP * STEP)
    if fits >= edge:
        return edge, f"the model's own {edge}"
    return (
        fits,
        f"half of the pictures are smaller than {int(usual) + 1}x{int(usual) + 1}; the model was made for {edge}",
    )


def window_for(pictures: int, unit: int) -> int:
    """The target effective batch: larger sets take larger ones, in whole micro-batches."""
    wanted = next((window for limit, window in _WINDOWS if pictures < limit), _LARGEST_WINDOW)
    return max(1, wanted // unit) * unit


def buckets_for(sizes: Collection[Size], rules: Rules, window: int) -> Buckets:
    """Shapes as they are where repeats can fill the window, otherwise the few shapes most pictures are close to."""
    counts = _counts(sizes, rules)
    needed = _needed(counts, window)
    if needed <= MOST_REPEATS:
        why = "no picture is cut to another shape"
        return Buckets((), counts, needed, f"{why}; the smallest bucket has {min(counts.values())}")
    aspects, few = _fewer(sizes, rules, counts, ceil(window / (MOST_REPEATS + 1)))
    why = f"{len(counts)} shapes, the rarest with {min(counts.values())} pictures: each is cut to the closest of {len(few)}"
    return Buckets(aspects, few, _needed(few, window), why)


def _fewer(
    sizes: Collection[Size], rules: Rules, natural: Mapping[str, int], least: int
) -> tuple[tuple[float, ...], Mapping[str, int]]:
    """The commonest shapes, without those that do not get `least` pictures."""
    common = sorted(natural, key=lambda name: (-natural[name], name))[:MOST_ASPECTS]
    aspects = sorted({float(name) for name in common})
    while True:
        counts = dict.fromkeys(aspects, 0)
        for width, height in sizes:
            shape = round(width / height, rules.rounding)
            counts[min(aspects, key=lambda aspect: abs(aspect - shape))] += 1
        rarest = min(aspects, key=lambda aspect: counts[aspect])
        merged = _counts(sizes, replace(rules, crop=True, crop_aspect="closest", aspects=tuple(aspects)))
        if len(aspects) == 1 or (counts[rarest] >= least and min(merged.values()) >= least):
            return tuple(aspects), merged
        aspects.remove(rarest)


def _counts(sizes: Collection[Size], rules: Rules) -> dict[str, int]:
    return dict(sorted(Counter(rules.bucket(size) for size in sizes).items()))


def _needed(counts: Mapping[str, int], window: int) -> int:
    return max(0, ceil(window / min(counts.values())) - 1)


def steps_for(pictures: int, window: int) -> int:
    """About forty looks at every picture, and neither too few nor too many updates to learn from."""
    return max(500, min(5000, round(pictures * 40 / window / 50) * 50))
