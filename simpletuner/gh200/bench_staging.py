"""Benchmark of in-memory datasets: staging, reading, sharing and cost per file, as ratios measured side by side."""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import mmap
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from .arena_shared import Arena
from .bench_ratio import ROUNDS, Ratio, seconds
from .staging import PAGE_CACHE_THREAD, stage
from .staging_options import StagingOptions

_TMPFS = Path("/dev/shm")


def make_files(folder: Path, sizes: list[int]) -> Path:
    folder.mkdir()
    noise = os.urandom(max(sizes) + 4096)
    for number, size in enumerate(sizes):
        # Spread over folders, as a dataset of any size is.
        parent = folder / f"{number // 1000:04d}"
        parent.mkdir(exist_ok=True)
        start = number % 4096
        (parent / f"{number:07d}.bin").write_bytes(noise[start : start + size])
    return folder


def warm(folder: Path) -> list[Path]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in files:
        path.read_bytes()
    return files


def wait_for_page_cache() -> None:
    """Nothing of one round may reach into the next."""
    for thread in threading.enumerate():
        if thread.name == PAGE_CACHE_THREAD:
            thread.join()


def copy_from_ram(source: mmap.mmap, sizes: list[int], workers: int) -> mmap.mmap:
    """The limit: the same threads copy the same bytes from RAM into a fresh mapping."""
    target = mmap.mmap(-1, len(source))
    offsets = [0, *itertools.accumulate(sizes)]
    addresses = [ctypes.addressof(ctypes.c_char.from_buffer(memory)) for memory in (target, source)]
    numbers = itertools.count()

    def work() -> None:
        while (number := next(numbers)) < len(sizes):
            to, of = (address + offsets[number] for address in addresses)
            ctypes.memmove(to, of, sizes[number])

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return target


def bench_staging(folder: Path, megabytes: int) -> list[Ratio]:
    chosen = random.Random(1)
    sizes: list[int] = []
    while sum(sizes) < megabytes * 10**6:
        sizes.append(chosen.randrange(100_000, 1_000_000))
    files = make_files(folder / "staging", sizes)
    options = StagingOptions()
    source = mmap.mmap(-1, sum(sizes))
    for position in range(0, len(source), 4096):
        source[position] = 1
    tmpfs = Path(tempfile.mkdtemp(dir=_TMPFS if _TMPFS.is_dir() else None))
    against_tmpfs, against_limit = [], []
    try:
        for _ in range(ROUNDS):
            warm(files)
            ours = seconds(stage, "bench", files, options)
            wait_for_page_cache()
            warm(files)
            copied = seconds(shutil.copytree, files, tmpfs / "copy")
            shutil.rmtree(tmpfs / "copy")
            limit = seconds(copy_from_ram, source, sizes, options.workers)
            against_tmpfs.append(copied / ours)
            against_limit.append(limit / ours)
    finally:
        shutil.rmtree(tmpfs)
        shutil.rmtree(files)
    return [
        Ratio("staging, times as fast as upstream's copy into tmpfs", tuple(against_tmpfs), 1.8),
        Ratio("staging, share of the speed of copying RAM into a fresh mapping", tuple(against_limit), 0.7),
    ]


def bench_reading(folder: Path) -> list[Ratio]:
    files = make_files(folder / "reading", [100_000] * 200)
    names = [str(path) for path in warm(files)]
    local_read, our_read, our_view = _readers(files)
    wait_for_page_cache()
    warm(files)
    reads, views = [], []
    for _ in range(ROUNDS):
        # Each long enough to outlast a time slice of the machine's other work.
        local, ours = (seconds(_read_all, reader, names, 20) / 20 for reader in (local_read, our_read))
        view = seconds(_read_all, our_view, names, 500) / 500
        reads.append(local / ours)
        views.append(local / view)
    shutil.rmtree(files)
    return [
        Ratio("read of 100 KB, times as fast as local with a warm page cache", tuple(reads), 2),
        Ratio("zero-copy view of 100 KB, times as fast as local", tuple(views), 30),
    ]


def _read_all(reader: Callable[[str], object], names: list[str], times: int) -> None:
    for _ in range(times):
        for name in names:
            reader(name)


def _readers(files: Path) -> tuple[Callable[[str], object], ...]:
    """The backends themselves inside a fork; what they come down to where there is no upstream."""
    try:
        from simpletuner.helpers.data_backend.local import LocalDataBackend

        from .in_memory_backend import GH200InMemoryBackend
    except ModuleNotFoundError:
        print("No upstream here: `local` is a plain open and read.")
        arena = stage("bench", files, StagingOptions())
        return (
            _plain_read,
            lambda name: arena.read(arena.find(name) or 0),
            lambda name: arena.view(arena.find(name) or 0),
        )
    ours = GH200InMemoryBackend(None, "bench", instance_data_dir=files)
    return LocalDataBackend(None, "bench").read, ours.read, ours.view


def _plain_read(name: str) -> bytes:
    with open(name, "rb") as file:
        return file.read()


_SHARER = """
import json, sys
from simpletuner.gh200.arena_shared import Handle, attach
arena = attach(Handle.from_dict(json.loads(sys.argv[1])))
print(sum(len(arena.read(number)) for _, number in arena.names()), flush=True)
sys.stdin.readline()
"""


def bench_sharing(folder: Path, megabytes: int) -> list[Ratio]:
    files = make_files(folder / "sharing", [1_000_000] * megabytes)
    values = []
    for _ in range(ROUNDS):
        arena = stage("bench", files, StagingOptions())
        _touch(arena)
        alone = _shared_bytes(os.getpid())
        handle = json.dumps(arena.handle().as_dict())
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", _SHARER, handle]
        others = [
            subprocess.Popen(command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for _ in range(3)
        ]
        for other in others:
            assert other.stdout and int(other.stdout.readline()) == megabytes * 10**6
        together = sum(_shared_bytes(pid) for pid in (os.getpid(), *(other.pid for other in others)))
        for other in others:
            other.communicate("\n")
        values.append(together / alone)
        del arena
    shutil.rmtree(files)
    return [
        Ratio(f"shared memory of 4 processes, times that of 1 ({megabytes} MB)", tuple(values), 1.1, at_least=False)
    ]


def _touch(arena: Arena) -> None:
    for _, number in arena.names():
        arena.read(number)


def _shared_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss_Shmem:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this kernel does not report Pss_Shmem")


def bench_cost_per_file(folder: Path, most: int) -> list[Ratio]:
    few, many = make_files(folder / "few", [2000] * 1000), make_files(folder / "many", [2000] * most)
    values = []
    for _ in range(ROUNDS):
        costs = []
        for files, count, repeats in ((few, 1000, 5), (many, most, 1)):
            taken = []
            for _ in range(repeats):
                warm(files)
                taken.append(seconds(stage, "bench", files, StagingOptions()))
                wait_for_page_cache()
            costs.append(statistics.median(taken) / count)
        values.append(costs[1] / costs[0])
    shutil.rmtree(few), shutil.rmtree(many)
    return [Ratio(f"cost per file with {most} files, times that with 1000", tuple(values), 1.25, at_least=False)]


def _all_ratios(folder: Path, megabytes: int, files: int) -> Iterator[Ratio]:
    yield from bench_staging(folder, megabytes)
    yield from bench_reading(folder)
    yield from bench_sharing(folder, megabytes)
    yield from bench_cost_per_file(folder, files)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m simpletuner.gh200.bench staging", description=__doc__)
    parser.add_argument(
        "--folder", type=Path, default=None, help="where the files are made (default: a temporary folder)"
    )
    parser.add_argument("--megabytes", type=int, default=1000, help="size of the large datasets")
    parser.add_argument("--files", type=int, default=100_000, help="size of the dataset of many small files")
    chosen = parser.parse_args(arguments)
    os.environ["TQDM_DISABLE"] = "1"
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}; {ROUNDS} interleaved rounds: median, spread, target")
    met = True
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        for ratio in _all_ratios(Path(folder), chosen.megabytes, chosen.files):
            print(ratio.line(), flush=True)
            met &= ratio.met
    print(f"load at the end {os.getloadavg()[0]:.1f}")
    return 0 if met else 1
