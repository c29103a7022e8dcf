"""In-memory datasets: staging, reading, sharing and cost per file, beside upstream's local and memory backends."""

from __future__ import annotations

import ctypes
import io
import itertools
import mmap
import random
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path

from simpletuner.gh200.backends.ram.arena import SharedArena, attach
from simpletuner.gh200.backends.ram.staging import PAGE_CACHE_THREAD, stage
from simpletuner.gh200.config.schema import InMemory

from .peers import TmpfsCopy, in_tmpfs, local_backend, make_files
from .result import BenchSettings, Ratio, Result, Series, in_turn, over, seconds
from .sharing import attaching, sharing

MANY, FEW = 100_000, 1000


def measure(settings: BenchSettings) -> Iterator[Result]:
    """All results of this benchmark."""
    megabytes = 20 if settings.quick else 1000
    with tempfile.TemporaryDirectory(dir=settings.directory) as name:
        directory = Path(name)
        yield from staging(directory, megabytes, settings.rounds)
        yield from reading(directory, settings)
        shared = make_files(directory / "sharing", [1_000_000] * megabytes)
        yield from sharing(shared, megabytes, settings.rounds)
        shutil.rmtree(shared)
        yield from cost_per_file(directory, [FEW, 2 * FEW] if settings.quick else [FEW, 10_000, MANY], settings.rounds)


def staged(files: Path) -> SharedArena:
    """The files in RAM, without a progress bar."""
    # A bar per round would bury the measurements.
    with redirect_stderr(io.StringIO()):
        return stage("bench", files, InMemory())


def warm(directory: Path) -> list[Path]:
    """All files, read once."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
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


def staging(directory: Path, megabytes: int, rounds: int) -> Iterator[Ratio]:
    """Staging speed beside its peers."""
    chosen = random.Random(1)
    sizes: list[int] = []
    while sum(sizes) < megabytes * 10**6:
        sizes.append(chosen.randrange(100_000, 1_000_000))
    files = make_files(directory / "staging", sizes)
    source = mmap.mmap(-1, sum(sizes))
    for position in range(0, len(source), 4096):
        source[position] = 1
    against_tmpfs, against_limit = [], []
    # The first round is thrown away: the machine hands out its first free pages at another price.
    for number in range(rounds + 1):
        warm(files)
        ours = seconds(staged, files)
        wait_for_page_cache()
        warm(files)
        copied, how = _time_tmpfs_copy(files)
        limit = seconds(copy_from_ram, source, sizes, InMemory().workers)
        if number:
            against_tmpfs.append(copied / ours)
            against_limit.append(limit / ours)
    shutil.rmtree(files)
    yield Ratio(f"staging, times as fast as {how}", tuple(against_tmpfs), 1.8)
    yield Ratio("staging, share of the speed of copying RAM into a fresh mapping", tuple(against_limit), 0.7)


def _time_tmpfs_copy(files: Path) -> tuple[float, str]:
    copies: list[TmpfsCopy] = []
    taken = seconds(lambda: copies.append(TmpfsCopy(files)))
    copies[0].close()
    return taken, copies[0].how


def reading(directory: Path, settings: BenchSettings) -> Iterator[Result]:
    """First reads are what building the VAE cache does; later ones what captions and conditioning do."""
    every = [4_000, 30_000, 100_000, 300_000, 1_000_000, 2_000_000, 8_000_000]
    sizes = [4_000, 100_000] if settings.quick else every
    first: dict[str, dict[int, list[float]]] = {}
    later: dict[str, dict[int, list[float]]] = {}
    for size in sizes:
        count = min(400, max(20, 80_000_000 // size))
        files = make_files(directory / f"reading{size}", [size] * count)
        for peer, taken in _first_in_turn(files, settings.rounds).items():
            first.setdefault(peer, {})[size] = [one / count * 1e6 for one in taken]
        for peer, taken in _read_in_turn(files, settings.rounds, loops=max(1, 2_000_000 // size)).items():
            later.setdefault(peer, {})[size] = [one / count * 1e6 for one in taken]
        shutil.rmtree(files)
    for size in sizes:
        values = over(first["upstream local"][size], first["in_memory read"][size])
        target = 1.5 if size == 100_000 else 0.95
        yield Ratio(f"first read of {size // 1000} KB, times as fast as local, page cache warm", values, target)
    local, ours = (later[peer][100_000] for peer in ("upstream local", "in_memory read"))
    yield Ratio("later reads of 100 KB, times as fast as local, page cache warm", over(local, ours), 2)
    yield Series("first read of one file, page cache warm", "bytes per file", first)
    yield Series("later reads of one file, page cache warm", "bytes per file", later)


def _first_in_turn(files: Path, rounds: int) -> dict[str, list[float]]:
    """Seconds to read every file once through a mapping that nothing was read from; attaching is not part of it."""
    arena, local = staged(files), local_backend()
    wait_for_page_cache()
    names = [str(path) for path in warm(files)]
    taken: dict[str, list[float]] = {"upstream local": [], "in_memory read": []}
    # The first round is thrown away, as everywhere.
    for number in range(rounds + 1):
        for peer in taken:
            fresh = attach(arena.handle())
            read = local.read if peer == "upstream local" else partial(_read_from, fresh)
            one = seconds(_read_all, read, names, 1)
            if number:
                taken[peer].append(one)
    return taken


def _read_from(arena: SharedArena, name: str) -> bytes:
    number = arena.find(name)
    assert number is not None
    return arena.read(number)


def _read_in_turn(files: Path, rounds: int, loops: int) -> dict[str, list[float]]:
    """Seconds to read every file once; each turn reads them often enough to outlast a time slice of other work."""
    local, read = local_backend(), _our_reader(files)
    wait_for_page_cache()
    with in_tmpfs(files) as copy:
        names, copied = [str(path) for path in warm(files)], [str(path) for path in warm(copy)]
        ways = {
            "upstream local": partial(_read_all, local.read, names, loops),
            "upstream memory (tmpfs)": partial(_read_all, local.read, copied, loops),
            "in_memory read": partial(_read_all, read, names, loops),
        }
        taken = in_turn(ways, rounds)
    return {peer: [one / loops for one in values] for peer, values in taken.items()}


def _read_all(reader: Callable[[str], object], names: list[str], times: int) -> None:
    for _ in range(times):
        for name in names:
            reader(name)


def _our_reader(files: Path) -> Callable[[str], object]:
    """The backend itself inside a fork; the arena it reads from where there is no upstream."""
    try:
        from simpletuner.gh200.backends.ram.backend import GH200InMemoryBackend
    except ImportError:
        arena = staged(files)
        return partial(_read_from, arena)
    with redirect_stderr(io.StringIO()):
        read: Callable[[str], object] = GH200InMemoryBackend(None, "bench", instance_data_dir=files).read
    return read


def cost_per_file(directory: Path, counts: list[int], rounds: int) -> Iterator[Result]:
    """Seconds per file by number of files."""
    trees = {count: make_files(directory / f"many{count}", [2000] * count) for count in counts}
    costs: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(rounds):
        for count, files in trees.items():
            # A small tree is over before the clock and the scheduler have settled: several in a row.
            repeats = max(1, 10_000 // count)
            warm(files)
            taken = 0.0
            for _ in range(repeats):
                taken += seconds(staged, files)
                wait_for_page_cache()
                warm(files)
            costs[count].append(taken / repeats / count * 1e6)
    yield from attaching(trees[counts[-1]], counts[-1], rounds)
    for files in trees.values():
        shutil.rmtree(files)
    values = over(costs[counts[-1]], costs[counts[0]])
    yield Ratio(f"cost per file with {counts[-1]} files, times that with {counts[0]}", values, 1.25, at_least=False)
    yield Series("staging, cost per file of 2 KB", "files in the dataset", {"in_memory staging": costs})
