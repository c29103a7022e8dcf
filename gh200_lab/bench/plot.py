"""The image of a benchmark: cost against size, one panel per series, one line per peer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .result import Series, spread


def draw(series: Sequence[Series], path: Path) -> None:
    """Draw the series into one image."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(series), figsize=(5.2 * len(series), 4), layout="constrained", squeeze=False)
    for axes, one in zip(panels[0], series, strict=True):
        for peer, costs in one.peers.items():
            sizes = sorted(costs)
            middle, low, high = zip(*(spread(costs[size]) for size in sizes), strict=True)
            line = axes.plot(sizes, middle, marker=".", label=peer)[0]
            axes.fill_between(sizes, low, high, color=line.get_color(), alpha=0.2)
        axes.set(xscale="log", yscale="log", xlabel=one.size, ylabel="microseconds", title=one.what)
        axes.title.set_size("medium")
        axes.grid(alpha=0.25, which="both")
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=110)
    plt.close(figure)
