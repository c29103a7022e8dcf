"""Caches read for the first time: the reader ahead beside upstream's torch_load and a plain readv, and a first epoch."""

from __future__ import annotations

import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

from simpletuner.gh200.backends.tensors.preload import Preload, Source
from simpletuner.gh200.backends.tensors.store import CacheStore
from simpletuner.gh200.runtime import end

from ..memory_run import begin_memory_run
from ..place import find_place
from ..tiny.config import UNIFIED
from ..tiny.lab import Lab
from ..tiny.run import Run
from .caches import LATENT, OPTIONS, REPEATED, text_entry
from .peers import local_backend, local_class, tiered_backend
from .result import BenchSettings, Ratio, Result, in_turn, over

ENTRIES = 1000
THREADS = 2
PAGE = 4096


def measure(settings: BenchSettings) -> Iterator[Result]:
    """All results of this benchmark."""
    rounds = settings.rounds if settings.quick else settings.rounds * 3
    begin_memory_run(OPTIONS)
    gc.disable()
    try:
        with tempfile.TemporaryDirectory(dir=settings.directory) as name:
            count = 40 if settings.quick else ENTRIES
            latents = _saved(Path(name) / "latents", lambda: torch.randn(LATENT).bfloat16(), count)
            yield from _first_reads("512 KB latents", latents, rounds, targets=(2, 0.6))
            yield _hit(latents, rounds)
            text = _saved(Path(name) / "text", text_entry, count)
            yield from _first_reads("310 KB text entries", text, rounds, targets=(None, None))
    finally:
        gc.enable()
        end()
    yield from _first_epoch(settings)


class Directory:
    """A cache as the reader ahead sees one."""

    def __init__(self, paths: list[str]) -> None:
        self.cache_dir = str(Path(paths[0]).parent)


def _saved(directory: Path, make: Callable[[], Any], count: int) -> list[str]:
    directory.mkdir()
    backend = local_backend()
    paths = [str(directory / f"{number}.pt") for number in range(count)]
    for path in paths:
        with open(path, "wb") as file:
            torch.save(make(), file)
        backend.torch_load(path)
    return paths


def _first_reads(
    what: str, paths: list[str], rounds: int, targets: tuple[float | None, float | None]
) -> Iterator[Result]:
    """All entries once, from files the kernel has in memory: what is compared is the work, not the disk.

    Nobody pays for fresh memory but in the last figure: upstream frees what it has read, the buffer is prepared, and the
    arena had other entries before.
    """
    backend, store = local_backend(), CacheStore(OPTIONS)
    buffer = bytearray(sum(os.stat(path).st_size for path in paths) + PAGE * len(paths))
    for at in range(0, len(buffer), PAGE):
        buffer[at] = 1
    taken = in_turn(
        {
            "upstream": partial(_upstream, backend, paths),
            "emptied": partial(_forget, paths, store),
            "ahead": partial(_ahead, backend, paths, store),
            "readv": partial(_readv, memoryview(buffer), paths, 1),
            "two": partial(_readv, memoryview(buffer), paths, THREADS),
            "fresh": partial(_ahead_in_fresh_memory, backend, paths),
        },
        rounds,
    )
    store.close()
    del taken["emptied"]
    for name, values in taken.items():
        print(f"  {what}, {name}: {statistics.median(values) / len(paths) * 1e6:.0f} us each")
    speed, share = targets
    upstream, ahead = taken["upstream"], taken["ahead"]
    yield Ratio(f"{what} read for the first time, times as fast as upstream", over(upstream, ahead), speed)
    yield Ratio(f"{what}, share of one thread's plain readv", over(taken["readv"], ahead), share)
    yield Ratio(f"{what}, share of two threads' plain readv", over(taken["two"], ahead))
    yield Ratio(f"{what}, memory faulted in as well, times as fast as upstream", over(upstream, taken["fresh"]))


def _upstream(backend: Any, paths: list[str]) -> None:
    for path in paths:
        backend.torch_load(path)


def _ahead_in_fresh_memory(backend: Any, paths: list[str]) -> None:
    store = CacheStore(OPTIONS)
    _ahead(backend, paths, store)
    store.close()


def _forget(paths: list[str], store: CacheStore) -> None:
    """What was read in the round before: its places are free again."""
    for path in paths:
        store.drop(path)


def _ahead(backend: Any, paths: list[str], store: CacheStore) -> None:
    source: Source = Directory(paths), backend, "device"
    preload = Preload(store, lambda: [source], threads=THREADS, shown=False)
    preload.training_begins()
    preload.done.wait()
    if preload.entries != len(paths):
        raise AssertionError(f"only {preload.summary()}")


def _readv(buffer: memoryview, paths: list[str], threads: int) -> None:
    """Each file to a place of its own in one buffer whose pages are there already."""
    places, at = [], 0
    for path in paths:
        size = os.stat(path).st_size
        places.append((path, buffer[at : at + size]))
        at += -(-size // PAGE) * PAGE
    if threads == 1:
        for place in places:
            _read_into(place)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(_read_into, places, chunksize=16))


def _read_into(place: tuple[str, memoryview]) -> None:
    file = os.open(place[0], os.O_RDONLY)
    os.preadv(file, [place[1]], 0)
    os.close(file)


def _hit(paths: list[str], rounds: int) -> Ratio:
    """A read of what was read ahead, beside one of what a step has read itself."""
    backend, ahead, today = local_backend(), CacheStore(OPTIONS), CacheStore(OPTIONS)
    source: Source = Directory(paths), backend, "device"
    some = paths[:32]
    preload = Preload(ahead, lambda: [source], shown=False)
    preload.training_begins()
    preload.done.wait()
    tiers = [tiered_backend(store, "vae", local_class()) for store in (ahead, today)]
    for tier in tiers:
        _read_all(tier, some)
    taken = [[_read_all(tier, some) for tier in tiers] for _ in range(rounds)]
    after, before = zip(*taken, strict=True)
    ahead.close()
    today.close()
    return Ratio("a hit after reading ahead, times one after a read", over(after, before), 1.1, at_least=False)


def _read_all(tier: Any, paths: list[str]) -> float:
    """CPU time: a hit is too short for the clock on the wall."""
    began = time.thread_time()
    for _ in range(REPEATED):
        for path in paths:
            tier.torch_load(path)
    return time.thread_time() - began


def _first_epoch(settings: BenchSettings) -> Iterator[Result]:
    """Seconds that upstream's trainer spends on getting batches in its first epoch, with caches on disk from before."""
    try:
        place = find_place()
    except FileNotFoundError as missing:
        print("skipped, the first epoch: " + "; ".join(map(str, missing.args)))
        return
    if place.pristine is None:
        print("skipped, the first epoch: there is no pristine tree; ./execute_gh200_rebase.sh --skip-tests keeps it")
        return
    steps, rounds = (6, 1) if settings.quick else (24, min(3, settings.rounds))
    taken: dict[str, list[float]] = {"upstream": [], "ahead": []}
    with tempfile.TemporaryDirectory(dir=settings.directory) as name:
        lab = Lab(Path(name), place.fork)
        lab.make(per_aspect=6)
        short = {"max_train_steps": steps, "gradient_accumulation_steps": 1, "checkpoint_step_interval": 10 * steps}
        plain = lab.config("off", **short)
        print(f"  training {1 + 2 * rounds} times, {steps} steps each", flush=True)
        lab.run("build", plain, tree=place.pristine, cold=True, orders={})
        for number in range(rounds):
            ways = {"upstream": (place.pristine, plain), "ahead": (place.fork, plain | {"cache_config": UNIFIED})}
            for way, (tree, config) in ways.items():
                run = lab.run(f"{way}{number}", config, tree=tree, orders={"reads": True})
                taken[way].append(_read_seconds(run))
    for way, values in taken.items():
        print(f"  {way}: {statistics.median(values) / (steps - 1) * 1e6:.0f} us a step")
    yield Ratio(
        "reading the caches in a first epoch after reading ahead, times upstream's",
        over(taken["ahead"], taken["upstream"]),
        0.5,
        at_least=False,
    )


def _read_seconds(run: Run) -> float:
    if run.code:
        raise RuntimeError(f"training ended with exit code {run.code}:\n{run.text[-3000:]}")
    return float(run.trace[-1]["read_seconds"])
