"""Files read several at once without the GIL: the same as one by one, whatever is among them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gh200_lab.memory_run import begin_memory_run
from simpletuner.gh200.caches import bulk
from simpletuner.gh200.caches import preload as preload_module
from simpletuner.gh200.caches.arena import TensorArena
from simpletuner.gh200.caches.blocks import ArenaFull, CacheBudget
from simpletuner.gh200.caches.entry import build
from simpletuner.gh200.caches.filling import Unreadable
from simpletuner.gh200.caches.preload import Preload
from simpletuner.gh200.caches.reader import EntryReader, Read, signature_of
from simpletuner.gh200.caches.store import CacheStore
from simpletuner.gh200.settings.cache_options import CacheOptions
from tests.unit.test_preload_reader import OTHER, PLAIN, same, saved
from tests.unit.unified_lab import unified


@pytest.fixture(autouse=True)
def _one_run() -> Iterator[None]:
    begin_memory_run(unified())
    yield
    begin_memory_run(CacheOptions())


@pytest.fixture(scope="module")
def native() -> bulk.Native:
    found = bulk.prepared()
    assert found is not None
    return found


@pytest.fixture
def reader(native: bulk.Native) -> EntryReader:
    reader = EntryReader()
    reader.native = native
    return reader


@pytest.fixture
def arena() -> TensorArena:
    return TensorArena(CacheBudget(None), "host", block_size=4 << 20)


def taken(reader: EntryReader, paths: list[Path], arena: TensorArena) -> list[Read | Exception]:
    return [found for _, found in reader.read_some([str(path) for path in paths], arena)]


def open_files() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("kind", [*PLAIN, *OTHER])
def test_preload_together_reads_what_torch_load_reads(
    kind: str, reader: EntryReader, arena: TensorArena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [saved(tmp_path / f"{number}.pt", (PLAIN | OTHER)[kind]()) for number in range(6)]
    before = open_files()
    list(taken(reader, paths[:1], arena))
    alone: list[str] = []
    original = EntryReader.read

    def by_itself(self: EntryReader, path: str, *rest: Any, **options: Any) -> Read:
        alone.append(path)
        return original(self, path, *rest, **options)

    monkeypatch.setattr(EntryReader, "read", by_itself)
    for path, read in zip(paths, taken(reader, paths, arena), strict=True):
        assert isinstance(read, Read) and read.signature == signature_of(path.stat())
        value = read.value if read.how == "torch" else build(read.value)
        assert same(value, torch.load(path, map_location="cpu"))
    together = any(layout.size == paths[0].stat().st_size for layout in reader._layouts.values())
    assert alone == ([] if together else [str(path) for path in paths])
    assert open_files() <= before


def test_preload_together_with_files_that_vanish_are_cut_or_are_of_another_kind(
    reader: EntryReader, arena: TensorArena, tmp_path: Path
) -> None:
    paths = [saved(tmp_path / f"ä {number}.pt", torch.full((300,), float(number))) for number in range(8)]
    assert all(isinstance(read, Read) for read in taken(reader, paths[:1], arena))
    size = paths[0].stat().st_size
    paths[1].unlink()
    paths[2].write_bytes(paths[2].read_bytes()[:700])
    paths[3].write_bytes(b"\0" * size)
    saved(paths[4], {"another": torch.ones(7)})
    paths[5].unlink()
    paths[5].mkdir()
    before, held = open_files(), arena.stats().tensors
    found = taken(reader, paths, arena)
    kinds = [type(read) for read in found]
    assert kinds[1] is FileNotFoundError and kinds[2] is kinds[3] is Unreadable and kinds[5] is IsADirectoryError
    assert all(kinds[number] is Read for number in (0, 4, 6, 7))
    assert same(build(found[7].value), torch.full((300,), 7.0))  # type: ignore[union-attr]
    assert arena.stats().tensors == held + 4 and open_files() <= before


def test_preload_together_up_to_the_limit(native: bulk.Native, tmp_path: Path) -> None:
    arena = TensorArena(CacheBudget(5 * 1024), "host", block_size=4 << 20)
    reader = EntryReader()
    reader.native = native
    paths = [saved(tmp_path / f"{number}.pt", torch.full((256,), float(number))) for number in range(9)]
    found = taken(reader, paths, arena)
    assert [type(read) for read in found] == [Read] * 5 + [ArenaFull]
    again = taken(reader, paths, arena)
    assert [type(read) for read in again] == [ArenaFull]
    assert arena.stats().payload_bytes == 5 * 1024


def test_preload_together_gives_back_what_nobody_takes(reader: EntryReader, arena: TensorArena, tmp_path: Path) -> None:
    paths = [saved(tmp_path / f"{number}.pt", torch.full((256,), float(number))) for number in range(9)]
    taken(reader, paths[:1], arena)
    held = arena.stats().tensors
    reads = reader.read_some([str(path) for path in paths], arena)
    next(reads)
    reads.close()
    assert arena.stats().tensors == held + 1


def test_preload_together_holds_the_gil_at_no_time(native: bulk.Native, tmp_path: Path) -> None:
    """Opening a pipe waits for its other end, which only Python can open meanwhile."""
    pipe = tmp_path / "pipe.pt"
    os.mkfifo(pipe)
    opened: list[bulk.OpenFile | None] = []

    def look() -> None:
        with bulk.OpenFiles(native, [str(pipe)]) as files:
            opened.extend(files.seen())

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    os.close(os.open(pipe, os.O_WRONLY))
    thread.join()
    assert opened == [bulk.OpenFile(0, signature_of(pipe.stat()))]


class Folder:
    def __init__(self, path: Path) -> None:
        self.cache_dir = str(path)


class Plain:
    compress_cache = False


@pytest.mark.parametrize("works", [True, False], ids=["prepared", "not to be had"])
def test_preload_reads_a_large_cache_together_or_says_why_not(
    works: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(preload_module, "TOGETHER_FROM", 50)
    if not works:
        monkeypatch.setattr(bulk, "_native", [])
        monkeypatch.setattr(bulk, "_compiled", lambda: (_ for _ in ()).throw(ImportError("no numba")))
    for number in range(60):
        saved(tmp_path / f"{number}.pt", torch.full((64,), float(number)))
    store = CacheStore(unified())
    preload = Preload(store, shown=False)
    with caplog.at_level("INFO", "gh200"):
        preload.watch(Folder(tmp_path), Plain(), "device")
        preload.training_begins()
        assert preload.done.wait(60)
        preload.end()
    assert preload.entries == 60 and (store.reader.native is not None) is works
    assert ("files are read one by one: ImportError: no numba" in caplog.text) is not works
    assert same(store.serve(str(tmp_path / "7.pt")), torch.full((64,), 7.0))
    store.close()


def test_preload_leaves_an_entry_alone_that_is_being_held_as_it_was_written(tmp_path: Path) -> None:
    """Between a file's writing and its holding a reader ahead may find it, and reads nothing back that is in hand."""
    path = str(saved(tmp_path / "0.pt", torch.ones(64)))
    store = CacheStore(unified())
    preload = Preload(store, shown=False)

    def held(arena: TensorArena) -> Read | None:
        preload.watch(Folder(tmp_path), Plain(), "device")
        preload.training_begins()
        assert preload.done.wait(60)
        return store.reader.read_back(path, torch.ones(64), arena)

    store.hold_written(path, held, "device", store.changes)
    preload.end()
    assert preload.entries == 0 and store.counts["held_when_written"] == 1 and store.has(path)
    store.close()
