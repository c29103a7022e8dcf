"""Pieces of the quick start's page: HTML that follows the reader's colours and width."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

STYLE = """
:root { color-scheme: light dark; --text: light-dark(#1c2126, #e3e7eb); --back: light-dark(#ffffff, #14181c);
  --line: light-dark(#c9d0d6, #3a424a); --soft: light-dark(#f1f4f6, #1f252b); --quiet: light-dark(#56606a, #a3adb7);
  --good: light-dark(#1a7f37, #57c975); --bad: light-dark(#9a4a00, #f0a356); --curve: light-dark(#2e7d32, #66c26a); }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 0 auto; padding: 1.2rem 1rem 3rem;
  color: var(--text); background: var(--back); overflow-wrap: anywhere; }
h1 { margin: 0; font-size: 1.7rem; } h2 { margin: 2.2rem 0 .6rem; font-size: 1.2rem; } p { margin: .3rem 0; }
.quiet, figcaption, .axis { color: var(--quiet); font-size: .9rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(8rem, 1fr)); gap: .7rem; margin: 1.2rem 0; }
.tile { background: var(--soft); border-radius: .5rem; padding: .6rem .8rem; } .tile b { display: block; font-size: 1.25rem; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; max-width: 34rem; }
.pair figure, .chart { margin: 0; } .pair img { width: 100%; image-rendering: pixelated; border-radius: .4rem; display: block; }
.chart { background: var(--soft); border-radius: .5rem; padding: .8rem; } .chart svg { display: block; width: 100%; height: 9rem; }
.chart path { fill: none; stroke: var(--curve); stroke-width: 2.5; vector-effect: non-scaling-stroke; }
.axis { display: flex; justify-content: space-between; gap: 1rem; }
table { border-collapse: collapse; width: 100%; } th { font-weight: 600; width: 38%; }
td, th { text-align: left; padding: .4rem .6rem .4rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
.bar { display: block; height: .5rem; min-width: 2px; border-radius: .2rem; background: var(--curve); margin-top: .35rem; }
.on { color: var(--good); font-weight: 600; } .off { color: var(--bad); font-weight: 600; } a { color: inherit; }
pre { background: var(--soft); border-radius: .4rem; padding: .7rem; white-space: pre-wrap; font-size: .9rem; }
"""


def text(value: object) -> str:
    """Escaped for HTML."""
    return html.escape(str(value))


def tiles(values: dict[str, str]) -> str:
    """A row of values."""
    found = (
        f"<div class='tile'><b>{text(value)}</b><span class='quiet'>{text(name)}</span></div>"
        for name, value in values.items()
    )
    return f"<div class='tiles'>{''.join(found)}</div>"


def rows(pairs: Iterable[tuple[str, str]]) -> str:
    """Both are HTML already."""
    return "<table>" + "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in pairs) + "</table>"


def image(path: Path, caption: str) -> str:
    """An image inside the page."""
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return f"<figure><img alt='{text(caption)}' src='data:image/png;base64,{data}'><figcaption>{text(caption)}</figcaption></figure>"


def step_chart(name: str, x: Sequence[float], y: Sequence[float], top: str, bottom: str) -> str:
    """A stair over the optimizer steps. Its words are HTML: they keep their size however wide the page is."""
    high, first, wide = max(y) or 1, x[0], (x[-1] - x[0]) or 1
    points = [(100 * (place - first) / wide, 38 - 36 * value / high) for place, value in zip(x, y, strict=True)]
    path = f"M{points[0][0]:.2f} {points[0][1]:.2f}"
    path += "".join(f"H{across:.2f}V{up:.2f}" for across, up in points[1:]) or "H100"
    return (
        f"<figure class='chart' id='{name}'><div class='axis'><span>{text(top)}</span></div>"
        f"<svg viewBox='0 0 100 40' preserveAspectRatio='none' role='img' aria-label='{text(top)}'><path d='{path}'/></svg>"
        f"<div class='axis'><span>step {x[0]:.0f}</span><span>{text(bottom)}</span><span>step {x[-1]:.0f}</span></div></figure>"
    )


def size(number: float) -> str:
    """As the fork's `format_size` says it; importing that one would load the whole trainer."""
    for unit in ("bytes", "KB", "MB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "bytes" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} GB"


# What features call their own counts, in words; empty where a word says nothing, None where the page says it elsewhere.
WORDS: dict[str, str | None] = {
    "enabled": None,
    "managed": None,
    "note": None,
    "steps": "micro-batches",
    "hints": "memory hints",
    "no_driver": "not given, no driver",
    "device_gone": "the GPU was lost",
    "counts": "",
    "admitted": "taken in",
    "payload_bytes": "content",
    "packed_bytes": "content and padding",
    "limit_bytes": "limit",
    "bytes": "on disk",
}


def formatted(name: str, value: Any) -> tuple[str, str] | None:
    """A raw name and value in words; None for what says nothing."""
    words = WORDS.get(name, name.replace("_", " "))
    if words is None or value is None or value == {} or value == "":
        return None
    if isinstance(value, bool):
        return words, "yes" if value else "no"
    if isinstance(value, (int, float)):
        if "bytes" in name:
            return words.removeprefix("bytes ").removesuffix(" bytes"), size(value)
        return words, f"{value:,}" if isinstance(value, int) else f"{value:,.3g}"
    return words, str(value)
