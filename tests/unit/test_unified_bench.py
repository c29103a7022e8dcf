"""The cache benchmark measures what it says: both ways on the same files, every figure with its spread."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
from unified_lab import unified  # noqa: E402

from simpletuner.gh200 import bench_caches, cache_sites  # noqa: E402
from simpletuner.gh200.cache_options import CacheOptions  # noqa: E402


@pytest.fixture(autouse=True)
def _one_run() -> Iterator[None]:
    cache_sites.configure(unified())
    yield
    cache_sites.configure(CacheOptions())


def test_unified_bench_spread_is_the_tenth_and_ninetieth_percentile() -> None:
    assert bench_caches.Figure.of(range(21)) == bench_caches.Figure(10, 2, 18)
    assert bench_caches.Figure.of([3.0]) == bench_caches.Figure(3, 3, 3)


def test_unified_bench_reads_and_collates_both_ways(tmp_path: Path) -> None:
    rows, _ = bench_caches.read_rows(tmp_path, 3)
    assert set(bench_caches.AT_LEAST) < set(rows)
    assert rows["latent read, 512 KB"].ratio.median > 10
    counts = cache_sites.memory_report()["caches"]["counts"]
    assert counts == {"admitted": 2 * bench_caches.BATCH}


def test_unified_bench_memory_and_flatness() -> None:
    flat = bench_caches.flatness([50, 100], 2, unified())
    assert set(flat) == {50, 100} and all(figure.low > 0 for figure in flat.values())
    # In a process of its own: this one has memory from other tests to give and take.
    assert 0.98 < bench_caches.memory_in_a_process_of_its_own("LATENT", 500) <= 1.05
