"""From the start of a run to its first batch: CPU of the scan, the sampler and a warm start, upstream's own classes and ours."""

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
    make_pictures,
    many_links,
    queues_that_let_go,
    sampler_over,
    tmpfs_folder,
)
from ..warm_start import quietly
from . import start_warm
from .result import BenchSettings, Ratio, Result, Series, over

# What upstream's parser gives without a key.
WORKERS = 12
BATCH = 4
# Of what takes upstream half a minute.
ROUNDS = 3


def measure(settings: BenchSettings) -> Iterator[Result]:
    os.environ.setdefault("SIMPLETUNER_LOG_LEVEL", "ERROR")
    try:
        import simpletuner.helpers.metadata.backends.discovery  # noqa: F401
    except ImportError:
        print("skipped: there is no upstream here; ./execute_gh200_rebase.sh --skip-tests builds a fork in build/fork")
        return
    where = settings.folder or tmpfs_folder()
    if settings.million and (free := os.statvfs(where).f_favail) < start_warm.MOST_FILES:
        raise SystemExit(
            f"A million pictures with captions and latents are {start_warm.MOST_FILES:,} files; {where} has room for "
            f"{free:,}. Give another --folder, or as root: mount -o remount,nr_inodes=4000000 {where}"
        )
    logging.disable(logging.ERROR)
    try:
        with tempfile.TemporaryDirectory(prefix="gh200-start-", dir=where) as name:
            yield from _scan(settings, Path(name))
            yield from _sampler(settings, Path(name))
            yield from start_warm.measure(settings, Path(name))
    finally:
        logging.disable(logging.NOTSET)


def _scan(settings: BenchSettings, folder: Path) -> Iterator[Result]:
    count = 2_000 if settings.quick else 50_000
    for distinct in (count // 50, count):
        files = _files(folder / f"distinct-{distinct}", distinct, count)
        rounds = [
            [_cold(files, count, on) for on in (False, True)]
            for _ in range(ROUNDS if distinct < count and not settings.quick else 1)
        ]
        upstream, ours = zip(*rounds, strict=True)
        target = 15.0 if distinct < count and not settings.quick else None
        what = f"cold scan of {count:,} files, {distinct:,} distinct sizes: CPU of upstream's over ours"
        yield Ratio(what, over(upstream, ours), target)
        medians = [1e6 * median(taken) / count for taken in (upstream, ours)]
        print("  CPU per file: upstream {:.0f} us, ours {:.0f} us".format(*medians))
        shutil.rmtree(folder / f"distinct-{distinct}")
    if settings.million:
        files = _files(folder / "million", 1_000, 1_000_000)
        taken = _cold(files, 1_000_000, on=True)
        print(f"  cold scan of 1,000,000 files: {taken:.0f} s of CPU, {taken:.0f} us per file")
        shutil.rmtree(folder / "million")


def _files(folder: Path, distinct: int, count: int) -> Path:
    """Many names for as many small pictures as there are sizes."""
    sizes = [(64 + number % 251, 64 + number // 251) for number in range(distinct)]
    many_links(folder / "pictures", make_pictures(folder / "originals", sizes, ("jpg",)), count)
    return folder / "pictures"


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


def _sampler(settings: BenchSettings, folder: Path) -> Iterator[Result]:
    sizes = (10_000, 50_000) if settings.quick else (10_000, 100_000, 1_000_000)
    peers: dict[str, dict[int, list[float]]] = {"upstream": {}, "ours": {}}
    for size in sizes:
        names = [f"/data/{number:07}.png" for number in range(size)]
        for _ in range(1 if settings.quick else settings.rounds):
            for on, peer in ((False, "upstream"), (True, "ours")):
                peers[peer].setdefault(size, []).append(_batch(folder, names, on))
    small, large = sizes[0], sizes[-1]
    yield Series("a batch of the sampler", "samples in the bucket", peers)
    upstream, ours = peers["upstream"], peers["ours"]
    checked = not settings.quick
    what = f"sampler, a bucket of {large:,}: upstream's cost over ours"
    yield Ratio(what, over(upstream[large], ours[large]), 20.0 if checked else None)
    what = f"sampler, ours at {large:,} over ours at {small:,}"
    yield Ratio(what, over(ours[large], ours[small]), 2.0 if checked else None, at_least=False)
    what = f"sampler, ours over upstream's at {small:,}"
    yield Ratio(what, over(ours[small], upstream[small]), 1.3 if checked else None, at_least=False)


def _batch(folder: Path, names: list[str], on: bool, batches: int = 200) -> float:
    """Microseconds of CPU of one batch, once the index of the bucket has been built."""
    with fast_start(on):
        sampler = sampler_over(Scene(folder / "none"), {"1.0": names}, BATCH)
        random.seed(1)
        given = iter(sampler)
        next(given)
        began = time.process_time()
        for _ in range(batches):
            next(given)
        return 1e6 * (time.process_time() - began) / batches
