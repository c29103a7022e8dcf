"""A start with every cache filled: CPU and private memory up to the first batch, each start in a process of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from .result import BenchSettings, Ratio, Result, over

WAYS = ("upstream", "ours", "certified")
DISTINCT = 1_000
# What a record takes from files must have been written longer ago than this; so must the files themselves.
SETTLED_SECONDS = 3
# Pictures, captions and latents of the largest dataset, and what belongs to them.
MOST_FILES = 3_010_000


def measure(settings: BenchSettings, folder: Path) -> Iterator[Result]:
    count = 2_000 if settings.quick else 50_000
    yield from _at(settings, folder / "warm", count, 1 if settings.quick else 3, (2.2, 5.0))
    if settings.million:
        yield from _at(settings, folder / "warm-million", 1_000_000, 1, (None, 8.0))


def _at(
    settings: BenchSettings, folder: Path, count: int, rounds: int, targets: tuple[float | None, float]
) -> Iterator[Result]:
    _run("make", folder, str(count), str(DISTINCT))
    # The first start scans, the next two record what they find.
    for way in ("ours", "certified", "certified"):
        time.sleep(SETTLED_SECONDS)
        _run(way, folder)
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way in WAYS:
            found[way].append(json.loads(_run(way, folder)))
            last = found[way][-1]
            print(f"  {way}: {1e6 * last['cpu'] / count:.1f} us of CPU per file, {last['wall']:.1f} s", flush=True)
    for way, target in zip(WAYS[1:], targets, strict=True):
        ratio = over([one["cpu"] for one in found["upstream"]], [one["cpu"] for one in found[way]])
        what = f"warm start at {count:,} files, {way}: CPU of upstream's over ours"
        yield Ratio(what, ratio, None if settings.quick else target)
    for way, most in zip(WAYS, (None, 1.8, 0.8), strict=True):
        growth = tuple(one["private"] / count / 1000 for one in found[way])
        what = f"private memory to the first batch at {count:,} files, {way}: GB per million"
        yield Ratio(what, growth, None if settings.quick else most, at_least=False)
    shutil.rmtree(folder)


def _run(*words: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "gh200_lab.warm_start", *map(str, words)],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"a start ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout.strip().rpartition("\n")[2]
