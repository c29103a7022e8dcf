"""Unified-memory caches: reads, a whole collate, memory and cost per entry, beside upstream's files and a plain dict."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

from simpletuner.gh200.backends.tensors.cache_kinds import CacheKind
from simpletuner.gh200.backends.tensors.hooks import known_finite, placed_latent
from simpletuner.gh200.backends.tensors.store import CacheStore
from simpletuner.gh200.config.cache_options import CacheOptions
from simpletuner.gh200.memory.process import process_memory
from simpletuner.gh200.runtime import end

from ..memory_run import begin_memory_run, store
from .peers import in_tmpfs, local_backend, local_class, tiered_backend
from .result import BenchSettings, Ratio, Result, Series, in_turn, over

CHANNELS = 16
SIDES = (16, 32, 64, 128, 256)  # bf16 with 16 channels: 8 KB .. 2 MB
LATENT = (CHANNELS, 128, 128)  # 512 KB
SMALL = (2048,)  # bf16: 4 KB
BATCH = 32
# A read from the arena is too short to time alone; repeating it keeps the clock out of the figure.
REPEATED = 50
OPTIONS = CacheOptions(kinds=frozenset({"vae", "text"}), hints=True)
Load = Callable[[str], Any]


def measure(settings: BenchSettings) -> Iterator[Result]:
    """All results of this benchmark."""
    # Short enough to take more samples than the others in the same time.
    rounds = settings.rounds if settings.quick else settings.rounds * 6
    begin_memory_run(OPTIONS)
    gc.disable()
    try:
        with tempfile.TemporaryDirectory(dir=settings.directory) as directory:
            yield from reads(Path(directory), rounds, SIDES[2:4] if settings.quick else SIDES)
        yield from growth([100, 1000] if settings.quick else [1_000, 10_000, 50_000, 200_000], rounds)
    finally:
        gc.enable()
        end()
    yield Ratio("memory over payload, entries of 512 KB", (memory_of_a_process("LATENT", 200),), 1.05, at_least=False)
    yield Ratio("memory over payload, entries of 4 KB", (memory_of_a_process("SMALL", 20_000),))


def text_entry() -> dict[str, Any]:
    """The shape of an SDXL text embedding: what is read with every latent."""
    embeds = {"prompt_embeds": torch.randn(1, 77, 2048).bfloat16(), "add_text_embeds": torch.randn(1, 1280).bfloat16()}
    return embeds | {"prompt_attention_mask": torch.ones(1, 77, dtype=torch.int64)}


def reads(directory: Path, rounds: int, sides: Sequence[int]) -> Iterator[Result]:
    """Reads of cached entries beside their peers."""
    costs: dict[str, dict[int, list[float]]] = {}
    for side in sides:
        entries = [torch.randn(CHANNELS, side, side).bfloat16() for _ in range(BATCH)]
        files = _saved(directory / f"side{side}", entries)
        taken = _read_in_turn(files, "vae", rounds)
        for peer, values in taken.items():
            costs.setdefault(peer, {})[entries[0].nbytes] = values
        if entries[0].shape == LATENT:
            yield Ratio(
                "latent read, 512 KB, times as fast as upstream", over(taken["upstream local"], taken["unified"]), 100
            )
            yield collate_ratio(files, rounds)
    taken = _read_in_turn(_saved(directory / "text", [text_entry() for _ in range(BATCH)]), "text", rounds)
    yield Ratio("text embed read, 310 KB, times as fast as upstream", over(taken["upstream local"], taken["unified"]))
    yield Series("read of one cached latent", "bytes per entry", costs)


def _saved(directory: Path, entries: Sequence[Any]) -> Path:
    directory.mkdir()
    for number, entry in enumerate(entries):
        torch.save(entry, directory / f"{number}.pt")
    return directory


def _read_in_turn(files: Path, kind: CacheKind, rounds: int) -> dict[str, list[float]]:
    """Microseconds of one read, for every way to keep the same entries."""
    plain = local_backend()
    tier = tiered_backend(store(), kind, local_class())
    paths = sorted(str(path) for path in files.iterdir())
    entries = {path: plain.torch_load(path) for path in paths}
    with in_tmpfs(files) as copy:
        ways: dict[str, tuple[Load, list[str], int]] = {
            "upstream local": (plain.torch_load, paths, 1),
            "upstream memory (tmpfs)": (plain.torch_load, [str(copy / Path(path).name) for path in paths], 1),
            "unified": (tier.torch_load, paths, REPEATED),
            "plain dict (the limit)": (entries.__getitem__, paths, REPEATED),
        }
        taken = in_turn({name: partial(_read_all, *way) for name, way in ways.items()}, rounds)
    return {name: [one / len(paths) / ways[name][2] * 1e6 for one in values] for name, values in taken.items()}


def _read_all(load: Load, paths: list[str], times: int) -> None:
    for _ in range(times):
        for path in paths:
            load(path)


def collate_ratio(files: Path, rounds: int) -> Ratio:
    """Collation from the cache against SimpleTuner's."""
    plain = local_backend()
    tier = tiered_backend(store(), "vae", local_class())
    paths = sorted(str(path) for path in files.iterdir())
    with ThreadPoolExecutor() as pool:
        ways = {
            "upstream": partial(collate, plain.torch_load, lambda _: False, pool, paths),
            "unified": partial(collate, lambda path: placed_latent(tier.torch_load(path)), known_finite, pool, paths),
        }
        if not torch.equal(ways["upstream"](), ways["unified"]()):
            raise AssertionError("the collated batches differ")
        taken = in_turn(ways, rounds)
    return Ratio("collate of 32 latents, times as fast as upstream", over(taken["upstream"], taken["unified"]), 4)


def collate(load: Load, finite: Callable[[Any], bool], pool: ThreadPoolExecutor, paths: list[str]) -> Any:
    """The steps of upstream's collate for latents: read in threads, check each for NaN and Inf, stack."""
    latents = list(pool.map(load, paths))
    for latent in latents:
        if not finite(latent) and (torch.isnan(latent).any() or torch.isinf(latent).any()):
            raise ValueError("a latent of the benchmark is not finite")
    return torch.stack(latents)


def _tier_of_made(shape: tuple[int, ...]) -> Any:
    """Of entries made in memory: for counts that would need too many files."""
    entry = torch.ones(shape, dtype=torch.bfloat16)

    class Made(local_class()):  # type: ignore[misc]
        def torch_load(self, path: str) -> Any:
            return entry.clone()

    return tiered_backend(CacheStore(OPTIONS), "vae", Made)


def growth(sizes: Sequence[int], rounds: int) -> Iterator[Result]:
    """CPU time of a read with ever more cached entries. A plain dict grows too: more memory than the processor caches."""
    stores: dict[tuple[str, int], tuple[Load, list[str]]] = {}
    for size in sizes:
        tier, plain = _tier_of_made(SMALL), {}
        keys = [f"/entry{n}" for n in range(size)]
        for key in keys:
            tier.torch_load(key)
            plain[key] = torch.ones(SMALL, dtype=torch.bfloat16)
        # As many different entries everywhere, so that only the number of cached ones differs.
        chosen = random.Random(0).sample(keys, k=min(1000, size))
        stores["unified", size] = tier.torch_load, chosen
        stores["plain dict (the limit)", size] = partial(_detached, plain), chosen
    costs: dict[str, dict[int, list[float]]] = {name: {size: [] for size in sizes} for name, _ in stores}
    for _ in range(rounds):
        for (name, size), (load, chosen) in stores.items():
            start = time.thread_time()
            for key in chosen:
                load(key)
            costs[name][size].append((time.thread_time() - start) / len(chosen) * 1e6)
    least, most = sizes[0], sizes[-1]
    ours, limit = (over(found[most], found[least]) for found in costs.values())
    yield Ratio(f"cost per read with {most} entries, times that with {least}", ours)
    yield Ratio("the same growth, times that of a plain dict of tensors", over(ours, limit), 1.1, at_least=False)
    yield Series("read of one cached entry of 4 KB", "cached entries", costs)


def _detached(entries: dict[str, torch.Tensor], key: str) -> torch.Tensor:
    return entries[key].detach()


def memory_of(shape: tuple[int, ...], count: int) -> float:
    """What the process grew by while holding this many entries, over their payload."""

    def resident() -> int:
        gc.collect()
        # What earlier work freed but the allocator keeps would be used again, and hide what the entries take.
        ctypes.CDLL(None).malloc_trim(0)
        return process_memory().resident

    begin_memory_run(OPTIONS)
    tier = _tier_of_made(shape)
    tier.torch_load("/first")
    before = resident()
    payload: int = sum(tier.torch_load(f"/entry{n}").nbytes for n in range(count))
    return (resident() - before) / payload


def memory_of_a_process(shape: str, count: int) -> float:
    """In a process of its own: this one has memory from other measurements to give and take."""
    code = f"from gh200_lab.bench import caches as b; print(b.memory_of(b.{shape}, {count}))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "SIMPLETUNER_SKIP_TORCH": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])
