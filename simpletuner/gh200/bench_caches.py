"""Benchmark of the unified-memory caches: each figure beside upstream's own, in one run, with its spread."""

from __future__ import annotations

import argparse
import gc
import io
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from .cache_options import CacheOptions
from .cache_sites import attach_cache_tier, configure, known_finite
from .cache_store import CacheStore
from .cache_tier import UnifiedCacheTier

LATENT = (16, 128, 128)  # bf16: 512 KB
SMALL = (2048,)  # bf16: 4 KB
BATCH = 32
# A read from the arena is too short to time alone; repeating it keeps the clock out of the figure.
REPEATED = 50
AT_LEAST = {"latent read, 512 KB": 100.0, "collate of 32 latents": 4.0}
AT_MOST = {"memory, 512 KB entries": 1.05, "cost per read, most over fewest": 1.5}


@dataclass(frozen=True)
class Figure:
    """Median, tenth and ninetieth percentile."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Figure:
        ordered, tail = sorted(samples), (len(samples) - 1) // 10
        return cls(statistics.median(ordered), ordered[tail], ordered[-1 - tail])

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} .. {self.high:.2f})"


@dataclass(frozen=True)
class Row:
    """Microseconds both ways, and the ratio of each pair that was measured back to back."""

    upstream: Figure
    unified: Figure
    ratio: Figure


def side_by_side(
    upstream: Callable[[], object], unified: Callable[[], object], repeats: int, *, uses: tuple[int, int]
) -> Row:
    """Both in turn, so that whatever else the machine does falls on both; `uses` is how much one call does."""
    upstream(), unified()
    samples: tuple[list[float], list[float]] = ([], [])
    gc.disable()
    for _ in range(repeats):
        for call, count, bucket in zip((upstream, unified), uses, samples, strict=True):
            start = time.perf_counter()
            call()
            bucket.append((time.perf_counter() - start) / count * 1e6)
    gc.enable()
    ratios = [before / after for before, after in zip(*samples, strict=True)]
    return Row(Figure.of(samples[0]), Figure.of(samples[1]), Figure.of(ratios))


class StandIn:
    """Reads a file whole and unpickles it, as upstream's local backend does."""

    id, type = "bench", "local"

    def torch_load(self, path: str) -> Any:
        if not os.path.exists(path):
            raise FileNotFoundError(path)
        return torch.load(io.BytesIO(Path(path).read_bytes()), map_location="cpu", weights_only=True)


class Made:
    """Entries made in memory: for counts that would need too many files."""

    id, type = "made", "made"

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._entry = torch.ones(shape, dtype=torch.bfloat16)

    def torch_load(self, path: str) -> Any:
        return self._entry.clone()


def upstream_backend() -> tuple[Any, str]:
    try:
        from simpletuner.helpers.data_backend.local import LocalDataBackend
    except ImportError:
        return StandIn(), "a stand-in for upstream's LocalDataBackend (the fork is not on the path)"
    return LocalDataBackend(None, "bench"), "upstream's LocalDataBackend"


class _Cache:
    def __init__(self, backend: Any, kind: Any) -> None:
        self.backend = backend
        attach_cache_tier(self, "backend", kind)


def text_entry() -> dict[str, Any]:
    """The shape of an SDXL text embedding: what is read with every latent."""
    embeds = {"prompt_embeds": torch.randn(1, 77, 2048).bfloat16(), "add_text_embeds": torch.randn(1, 1280).bfloat16()}
    return embeds | {"prompt_attention_mask": torch.ones(1, 77, dtype=torch.int64)}


def collate(load: Callable[[str], Any], finite: Callable[[Any], bool], pool: ThreadPoolExecutor, paths: list[str]) -> Any:
    """The steps of upstream's collate for latents: read in threads, check each for NaN and Inf, stack."""
    latents = list(pool.map(load, paths))
    for latent in latents:
        if not finite(latent) and (torch.isnan(latent).any() or torch.isinf(latent).any()):
            raise ValueError("a latent of the benchmark is not finite")
    return torch.stack(latents)


def read_rows(folder: Path, repeats: int) -> tuple[dict[str, Row], str]:
    plain, source = upstream_backend()
    entries = {
        "latent read, 512 KB": ("vae", [torch.randn(LATENT).bfloat16() for _ in range(BATCH)]),
        "text embed read, 310 KB": ("text", [text_entry() for _ in range(BATCH)]),
    }
    rows, latents, held = {}, [], None
    for name, (kind, values) in entries.items():
        tier = _Cache(plain, kind).backend
        paths = [str(folder / f"{kind}{n}.pt") for n in range(BATCH)]
        for path, value in zip(paths, values, strict=True):
            torch.save(value, path)

        def read(load: Callable[[str], Any], paths: list[str] = paths, times: int = 1) -> None:
            for _ in range(times):
                for path in paths:
                    load(path)

        def upstream(read: Callable[..., None] = read) -> None:
            read(plain.torch_load)

        def unified(read: Callable[..., None] = read, tier: Any = tier) -> None:
            read(tier.torch_load, times=REPEATED)

        rows[name] = side_by_side(upstream, unified, repeats, uses=(BATCH, BATCH * REPEATED))
        if kind == "vae":
            latents, held = paths, tier
    with ThreadPoolExecutor() as pool:
        ways = (
            lambda: collate(plain.torch_load, lambda _: False, pool, latents),
            lambda: collate(held.torch_load, known_finite, pool, latents),
        )
        if not torch.equal(ways[0](), ways[1]()):
            raise AssertionError("the collated batches differ")
        rows["collate of 32 latents"] = side_by_side(*ways, repeats, uses=(1, 1))
    return rows, source


def flatness(sizes: Sequence[int], repeats: int, options: CacheOptions) -> dict[int, Figure]:
    """CPU time of one read of a 4 KB entry with this many held: the same 1,000 reads in every store, all in turn."""
    tiers: dict[int, tuple[Any, list[str]]] = {}
    for size in sizes:
        tier = UnifiedCacheTier(Made(SMALL), CacheStore(options), "device")
        keys = [f"entry{n}" for n in range(size)]
        for key in keys:
            tier.torch_load(key)
        # As many different entries everywhere: what the processor's own cache holds is not what is measured.
        tiers[size] = tier, random.Random(0).sample(keys, k=min(1000, size))
    samples: dict[int, list[float]] = {size: [] for size in sizes}
    gc.collect()
    gc.disable()
    for _ in range(repeats):
        for size, (tier, chosen) in tiers.items():
            start = time.thread_time()
            for key in chosen:
                tier.torch_load(key)
            samples[size].append((time.thread_time() - start) / len(chosen) * 1e6)
    gc.enable()
    return {size: Figure.of(values) for size, values in samples.items()}


def memory_of(shape: tuple[int, ...], count: int) -> float:
    """What the process grew by while holding this many entries, over their payload."""

    def resident() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    options = CacheOptions(kinds=frozenset({"vae"}), hints=True)
    configure(options)
    tier = UnifiedCacheTier(Made(shape), CacheStore(options), "device")
    tier.torch_load("first")
    before = resident()
    payload = sum(tier.torch_load(f"entry{n}").nbytes for n in range(count))
    return (resident() - before) / payload


def memory_in_a_process_of_its_own(shape: str, count: int) -> float:
    code = f"from simpletuner.gh200 import bench_caches as b; print(b.memory_of(b.{shape}, {count}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench caches", description=__doc__)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--entries", type=int, nargs="+", default=[1_000, 10_000, 50_000, 200_000])
    parser.add_argument("--output", type=Path, help="also write the figures as JSON")
    chosen = parser.parse_args(arguments)
    options = CacheOptions(kinds=frozenset({"vae", "text"}), hints=True, log_interval=0)
    configure(options)
    with tempfile.TemporaryDirectory() as folder:
        rows, source = read_rows(Path(folder), chosen.repeats)
    flat = flatness(chosen.entries, chosen.repeats, options)
    single = {
        "memory, 512 KB entries": memory_in_a_process_of_its_own("LATENT", 1000),
        "memory, 4 KB entries": memory_in_a_process_of_its_own("SMALL", 20_000),
        "cost per read, most over fewest": flat[max(flat)].median / flat[min(flat)].median,
    }
    configure(CacheOptions())
    print(f"Reads through {source}; microseconds, median (10 % .. 90 %) of {chosen.repeats} pairs, each taken back to back.")
    for name, row in rows.items():
        print(f"{name:26} upstream {row.upstream!s:34} unified {row.unified!s:30} ratio {row.ratio}")
    for size, figure in flat.items():
        print(f"4 KB read of {size:<13} CPU time {figure}")
    for name, value in single.items():
        print(f"{name:34} {value:.3f}")
    ratios = {name: rows[name].ratio.median for name in AT_LEAST}
    missed = [f"{name} {ratios[name]:.1f}x < {bound:g}x" for name, bound in AT_LEAST.items() if ratios[name] < bound]
    missed += [f"{name} {single[name]:.3f} > {bound:g}" for name, bound in AT_MOST.items() if single[name] > bound]
    print("missed: " + "; ".join(missed) if missed else "all budgets met")
    if chosen.output:
        figures = {"source": source, "rows": {k: asdict(v) for k, v in rows.items()}, "single": single, "missed": missed}
        chosen.output.write_text(json.dumps(figures | {"flat": {k: asdict(v) for k, v in flat.items()}}, indent=2) + "\n")
    return 1 if missed else 0


run = main

if __name__ == "__main__":
    sys.exit(main())
