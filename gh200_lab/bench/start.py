"""The scan of a dataset: CPU of upstream's own classes and ours."""

from __future__ import annotations

import gc
import logging
import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from ..first_batch import (
    Scene,
    cpu_seconds,
    fast_start,
    make_images,
    many_links,
    queues_that_let_go,
    quietly,
    tmpfs_directory,
)
from .result import BenchSettings, Ratio, Result, over

# What upstream's parser gives without a key.
WORKERS = 12
# Of the largest dataset, and what belongs to it.
MOST_FILES = 1_010_000
# Of what takes upstream half a minute.
ROUNDS = 3


def measure(settings: BenchSettings) -> Iterator[Result]:
    """All results of this benchmark."""
    os.environ.setdefault("SIMPLETUNER_LOG_LEVEL", "ERROR")
    try:
        import simpletuner.helpers.metadata.backends.discovery  # noqa: F401
    except ImportError:
        print("skipped: there is no upstream here; ./execute_gh200_rebase.sh --skip-tests builds a fork in build/fork")
        return
    where = settings.directory or tmpfs_directory()
    if settings.million and (free := os.statvfs(where).f_favail) < MOST_FILES:
        raise SystemExit(
            f"A million images are {MOST_FILES:,} files; {where} has space for {free:,}. Give another --directory, or as "
            f"root: mount -o remount,nr_inodes=2000000 {where}"
        )
    logging.disable(logging.ERROR)
    try:
        with tempfile.TemporaryDirectory(prefix="gh200-start-", dir=where) as name:
            yield from _scan(settings, Path(name))
    finally:
        logging.disable(logging.NOTSET)


def _scan(settings: BenchSettings, directory: Path) -> Iterator[Result]:
    count = 2_000 if settings.quick else 50_000
    for distinct in (count // 50, count):
        files = _files(directory / f"distinct-{distinct}", distinct, count)
        rounds = [
            [_cold(files, count, on) for on in (False, True)]
            for _ in range(ROUNDS if distinct < count and not settings.quick else 1)
        ]
        upstream, ours = zip(*rounds, strict=True)
        target = 10.0 if distinct < count and not settings.quick else None
        what = f"cold scan of {count:,} files, {distinct:,} distinct sizes: CPU of upstream's over ours"
        yield Ratio(what, over(upstream, ours), target)
        medians = [1e6 * median(taken) / count for taken in (upstream, ours)]
        print("  CPU per file: upstream {:.0f} us, ours {:.0f} us".format(*medians))
        shutil.rmtree(directory / f"distinct-{distinct}")
    if settings.million:
        files = _files(directory / "million", 1_000, 1_000_000)
        taken = _cold(files, 1_000_000, on=True)
        print(f"  cold scan of 1,000,000 files: {taken:.0f} s of CPU, {taken:.0f} us per file")
        shutil.rmtree(directory / "million")


def _files(directory: Path, distinct: int, count: int) -> Path:
    """Many names for as many small images as there are sizes."""
    sizes = [(64 + number % 251, 64 + number // 251) for number in range(distinct)]
    many_links(directory / "images", make_images(directory / "originals", sizes, ("jpg",)), count)
    return directory / "images"


def _cold(files: Path, count: int, on: bool) -> float:
    """CPU seconds of one scan from nothing, those of child processes too."""
    scene = Scene(files, aspect_bucket_worker_count=WORKERS)
    scene.forget_files()
    with fast_start(on), queues_that_let_go(), quietly():
        backend = scene.backend()
        random.seed(1)
        gc.collect()
        taken, wall = cpu_seconds(), time.perf_counter()
        backend.compute_aspect_ratio_bucket_indices()
        taken, wall = cpu_seconds() - taken, time.perf_counter() - wall
    placed = sum(map(len, backend.aspect_ratio_bucket_indices.values()))
    lost = f", {count - placed} files lost" if placed < count else ""
    print(f"  {'ours' if on else 'upstream'}: {taken:.1f} s of CPU, {wall:.1f} s{lost}", flush=True)
    return taken
