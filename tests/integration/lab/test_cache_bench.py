"""The benchmarks measure what they say: all peers on the same files in turn, every figure with its spread."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gh200_lab.bench import caches as bench_caches
from gh200_lab.bench import peers as bench_peers
from gh200_lab.bench import result as bench_result
from gh200_lab.bench import warm as bench_warm
from gh200_lab.bench.result import Ratio, Series
from gh200_lab.memory_run import begin_memory_run, tensor_caches
from gh200_lab.place import ROOT
from simpletuner.gh200.config.cache_options import CacheOptions


@pytest.fixture(autouse=True)
def _one_run() -> Iterator[None]:
    begin_memory_run(bench_caches.OPTIONS)
    yield
    begin_memory_run(CacheOptions())


def test_bench_spread_is_the_tenth_and_ninetieth_percentile() -> None:
    assert bench_result.spread(range(21)) == (10, 2, 18)
    assert bench_result.spread([3.0]) == (3, 3, 3)


@pytest.mark.parametrize(
    ("at_least", "target", "met"), [(True, 2.0, True), (True, 4.0, False), (False, 2.0, False), (False, 4.0, True)]
)
def test_bench_target_is_compared_with_the_median(at_least: bool, target: float, met: bool) -> None:
    ratio = Ratio("x", (1.0, 3.0, 9.0), target, at_least)
    assert ratio.met is met and ratio.as_dict()["met"] is met
    assert ("NOT MET" in ratio.lines()[0]) is not met
    assert Ratio("x", (1.0,)).met and "reported" in Ratio("x", (1.0,)).lines()[0]


def test_bench_peers_take_turns() -> None:
    calls: list[str] = []
    taken = bench_result.in_turn({name: lambda name=name: calls.append(name) for name in "ab"}, 2)
    assert calls == list("ababab") and {name: len(values) for name, values in taken.items()} == {"a": 2, "b": 2}


def test_warm_cache_bench_reads_ahead_and_beside_its_peers(tmp_path: Path) -> None:
    paths = bench_warm._saved(tmp_path / "text", bench_warm.text_entry, 6)
    results = list(bench_warm._first_reads("text", paths, 2, targets=(4, None)))
    assert len(results) == 4 and all(len(one.values) == 2 and min(one.values) > 0 for one in results)
    assert [one.target for one in results] == [4, None, None, None]
    assert bench_warm._hit(paths, 2).target == 1.1


def test_unified_bench_reads_and_collates_every_way(tmp_path: Path) -> None:
    results = list(bench_caches.reads(tmp_path, 3, [32, 128]))
    ratios = {result.what: result for result in results if isinstance(result, Ratio)}
    assert ratios["latent read, 512 KB, times as fast as upstream"].values[0] > 10
    series = next(result for result in results if isinstance(result, Series))
    assert {tuple(costs) for costs in series.peers.values()} == {(32768, 524288)} and len(series.peers) == 4
    counts = tensor_caches().report()["caches"]["counts"]
    assert counts == {"admitted": 3 * bench_caches.BATCH}


def test_unified_bench_memory_and_growth() -> None:
    found = {result.what: result for result in bench_caches.growth([50, 100], 2)}
    assert len(found) == 3 and all(result.values for result in found.values() if isinstance(result, Ratio))
    assert 0.98 < bench_caches.memory_of_a_process("LATENT", 500) <= 1.05


def test_bench_tmpfs_copy_is_whole_and_gone_afterwards(tmp_path: Path) -> None:
    files = bench_peers.make_files(tmp_path / "files", [10, 2000])
    with bench_peers.in_tmpfs(files) as copy:
        found = {path.relative_to(copy): path.read_bytes() for path in copy.rglob("*.bin")}
    assert found == {path.relative_to(files): path.read_bytes() for path in files.rglob("*.bin")} and len(found) == 2
    assert not copy.exists()


def test_bench_command_writes_a_table_json_and_a_plot(tmp_path: Path) -> None:
    done = _bench(
        "staging", "--quick", "--rounds", "1", "--directory", str(tmp_path), "--output", str(tmp_path / "out")
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "read of 100 KB" in done.stdout and "Staging bench" not in done.stderr
    written = json.loads((tmp_path / "out" / "staging.json").read_text())
    whats = [result["what"] for result in written["benchmarks"]["staging"]]
    assert len(whats) == len(set(whats)) == 13
    assert (tmp_path / "out" / "staging.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("wrong", [["nosuch"], ["ramp", "--rounds", "0"], ["ramp", "--directory", "no/such/directory"]])
def test_bench_rejects_what_it_does_not_know(wrong: list[str]) -> None:
    done = _bench(*wrong)
    assert done.returncode == 2 and "error:" in done.stderr


def _bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"SIMPLETUNER_SKIP_TORCH": "1"}
    command = [sys.executable, "-m", "gh200_lab.bench", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
