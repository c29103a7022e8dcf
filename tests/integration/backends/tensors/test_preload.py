"""Preloading and caching what is written: real files and threads; bit-identical, no waiting, nothing stale, nothing lost."""

from __future__ import annotations

import gzip
import io
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gh200_lab.memory_run import begin_memory_run, tensor_caches
from simpletuner.gh200.backends.tensors import arena as arena_module
from simpletuner.gh200.backends.tensors import hooks
from simpletuner.gh200.backends.tensors import preload as preload_module
from simpletuner.gh200.backends.tensors import store as store_module
from simpletuner.gh200.backends.tensors.backend import UnifiedCacheTier
from simpletuner.gh200.config.cache_options import CacheOptions
from simpletuner.gh200.memory import hints
from simpletuner.gh200.memory.limits import Limit
from simpletuner.gh200.runtime import end
from tests.cuda_sim.processes import Machine
from tests.support.fake_cache_backend import Directory, DirectoryBackend, tiered, unified


@pytest.fixture(autouse=True)
def _one_run() -> Iterator[None]:
    hints.set_uvm_hint_override(None)
    begin_memory_run(unified())
    with pytest.MonkeyPatch.context() as patching:
        patching.setitem(sys.modules, "simpletuner.helpers.training.state_tracker", None)
        yield
    REGISTERED.clear()
    hints.set_uvm_hint_override(None)
    begin_memory_run(CacheOptions())


REGISTERED: dict[str, dict[str, Any]] = {}


class TextCache:
    """As upstream's: made after its backend, and found where its dataset is registered."""

    def __init__(self, directory: Path, backend: Any, kind: str = "text") -> None:
        self.backend = self.data_backend = self.cache_data_backend = tiered(backend, kind)
        self.cache_dir = str(directory)
        module = SimpleNamespace(StateTracker=SimpleNamespace(data_backends=REGISTERED))
        sys.modules["simpletuner.helpers.training.state_tracker"] = module  # type: ignore[assignment]
        key = {"text": "text_embed_cache", "vae": "vaecache"}[kind]
        REGISTERED[str(len(REGISTERED))] = {key: self}


def filled(directory: Path, count: int, size: int = 64) -> list[str]:
    directory.mkdir(exist_ok=True)
    paths = []
    for number in range(count):
        paths.append(str(directory / f"{number:05d}.pt"))
        with open(paths[-1], "wb") as file:
            torch.save({"n": number, "latents": torch.full((size,), float(number))}, file)
    return paths


def read_ahead(*caches: TextCache) -> dict[str, Any]:
    hooks.training_begins()
    preload = tensor_caches().preload
    assert preload is not None and preload.done.wait(60), caches
    return preload.report()


def caches() -> dict[str, Any]:
    return tensor_caches().report()["caches"]


def test_reads_everything_before_anybody_asks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    backend, paths = DirectoryBackend(), filled(tmp_path / "cache", 50)
    cache = TextCache(tmp_path / "cache", backend)
    with caplog.at_level(logging.INFO, "gh200"):
        report = read_ahead(cache)
    assert report["entries"] == 50 and report["how"] == {"straight": 50} and not report["left_out"]
    assert "read ahead 50 entries" in caplog.text and "nothing was left out" in caplog.text
    assert "0.000 GB" not in caplog.text
    for number, path in enumerate(paths):
        found = cache.backend.torch_load(path)
        assert found["n"] == number and found["latents"].tolist() == [float(number)] * 64
    assert not backend.loads and caches()["disk_reads_in_training"] == 0 and caches()["hits"] == 50


def test_false_reads_nothing_ahead(tmp_path: Path) -> None:
    begin_memory_run(unified(preload=False))
    backend, paths = DirectoryBackend(), filled(tmp_path / "cache", 3)
    cache = TextCache(tmp_path / "cache", backend)
    hooks.training_begins()
    assert tensor_caches().preload is None
    cache.backend.torch_load(paths[0])
    assert backend.loads[paths[0]] == 1 and caches()["disk_reads_in_training"] == 1 and "preload" not in caches()


def test_leaves_switched_off_caches_alone(tmp_path: Path) -> None:
    filled(tmp_path / "cache", 3)
    begin_memory_run(CacheOptions(kinds=frozenset({"vae"}), hints=True))
    TextCache(tmp_path / "cache", DirectoryBackend())
    assert tensor_caches().preload is None


def test_two_caches_and_compressed_files(tmp_path: Path) -> None:
    one, two = filled(tmp_path / "one", 5), filled(tmp_path / "two", 7)
    for path in two:
        Path(path).write_bytes(gzip.compress(Path(path).read_bytes()))
    packed = DirectoryBackend("packed")
    packed.compress_cache = True  # type: ignore[attr-defined]
    caches_ = [TextCache(tmp_path / "one", DirectoryBackend()), TextCache(tmp_path / "two", packed, "vae")]
    report = read_ahead(*caches_)
    assert report["how"] == {"straight": 5, "unpacked": 7}
    assert caches_[1].backend.torch_load(two[3])["n"] == 3 and caches_[0].backend.torch_load(one[4])["n"] == 4
    assert not packed.loads


class LatentCache(TextCache):
    """As upstream's VAE cache: which of the files are this rank's is known once the dataset was listed."""

    def __init__(self, directory: Path, backend: Any) -> None:
        super().__init__(directory, backend, "vae")
        self.metadata_backend = self
        self.aspect_ratio_bucket_indices: dict[str, list[str]] = {}

    def build_vae_cache_filename_map(self, shard: dict[str, list[str]], paths: dict[str, str]) -> None:
        self.aspect_ratio_bucket_indices = shard
        self.image_path_to_vae_path = paths


def test_reads_this_ranks_own_part(tmp_path: Path) -> None:
    paths = filled(tmp_path / "cache", 10)
    cache = LatentCache(tmp_path / "cache", DirectoryBackend())
    images = {f"{number}.png": path for number, path in enumerate(paths)}
    cache.build_vae_cache_filename_map({"1.0": ["7.png", "2.png"], "0.5": ["4.png", "gone.png"]}, images)
    assert read_ahead()["entries"] == 3
    store = tensor_caches().opened()
    assert [number for number, path in enumerate(paths) if store.has(path)] == [2, 4, 7]


def test_reads_the_whole_directory_where_the_part_is_not_known(tmp_path: Path) -> None:
    paths = filled(tmp_path / "cache", 4)
    cache = LatentCache(tmp_path / "cache", DirectoryBackend())
    cache.build_vae_cache_filename_map({"1.0": ["./0.png"]}, {"0.png": paths[0]})
    assert read_ahead()["entries"] == 4


def test_sees_what_another_rank_writes_while_the_cache_is_built(tmp_path: Path) -> None:
    filled(tmp_path / "cache", 2)
    cache = TextCache(tmp_path / "cache", DirectoryBackend())
    wait_for(lambda: tensor_caches().report()["caches"]["preload"]["entries"] == 2)
    filled(tmp_path / "cache", 6)
    assert read_ahead(cache)["entries"] == 6


def wait_for(fact: Any) -> None:
    until = time.monotonic() + 60
    while not fact():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_file_changed_after_it_was_read_is_not_served(tmp_path: Path) -> None:
    backend, paths = DirectoryBackend(), filled(tmp_path / "cache", 4)
    cache = TextCache(tmp_path / "cache", backend)
    read_ahead(cache)
    DirectoryBackend().torch_save({"n": 99}, paths[1])
    Path(paths[2]).unlink()
    assert cache.backend.torch_load(paths[1]) == {"n": 99}
    assert not cache.backend.exists(paths[2])
    with pytest.raises(FileNotFoundError):
        cache.backend.torch_load(paths[2])
    assert backend.loads == {paths[1]: 1}


def test_bad_files_are_left_out_and_upstream_speaks_for_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    backend, paths = DirectoryBackend(), filled(tmp_path / "cache", 5)
    Path(paths[1]).write_bytes(Path(paths[1]).read_bytes()[:200])
    Path(paths[2]).write_bytes(b"")
    Path(paths[3]).unlink()
    Path(paths[3]).mkdir()
    os.mkfifo(tmp_path / "cache" / "never_opened.pt")
    cache = TextCache(tmp_path / "cache", backend)
    with caplog.at_level(logging.INFO, "gh200"):
        report = read_ahead(cache)
    assert report["entries"] == 2 and report["left_out"] == {"unreadable": 2}
    assert "2 unreadable" in caplog.text and Path(paths[1]).exists(), "nothing is deleted"
    for path in paths[1:3]:
        with pytest.raises(Exception, match=r".") as caught:
            cache.backend.torch_load(path)
        assert any(path in note for note in caught.value.__notes__)


def test_a_limit_below_the_whole_fills_what_it_can_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begin_memory_run(unified(memory_limit=10 * 1024))
    backend, paths = DirectoryBackend(), filled(tmp_path / "cache", 40, size=256)
    cache = TextCache(tmp_path / "cache", backend)
    with caplog.at_level(logging.INFO, "gh200"):
        report = read_ahead(cache)
    # One less or two where a thread found the last places reserved by others.
    assert 8 <= report["entries"] <= 10 and report["entries"] + sum(report["left_out"].values()) == 40, report
    assert "limit of 10240 bytes" in caplog.text and "not reached" in caplog.text
    assert [cache.backend.torch_load(path)["n"] for path in paths] == list(range(40))
    assert caches()["disk_reads_in_training"] == 40 - report["entries"]


def test_stops_when_free_memory_shrinks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks: list[int] = []

    def limits() -> list[Limit]:
        looks.append(1)
        return [Limit("machine", "free memory of the machine", 5 if len(looks) > 3 else 1 << 40)]

    monkeypatch.setattr(arena_module, "memory_limits", limits)
    monkeypatch.setattr(arena_module, "BLOCK_ROUNDING", 1 << 12)
    tensor_caches().opened().arena("host")._block_size = 1 << 12
    filled(tmp_path / "cache", 100)
    cache = TextCache(tmp_path / "cache", DirectoryBackend())
    with caplog.at_level(logging.INFO, "gh200"):
        report = read_ahead(cache)
    assert report["entries"] == 3 * 16, "three blocks"
    assert report["entries"] + sum(report["left_out"].values()) == 100
    assert "stopped: a block of 4096 bytes does not fit: free memory of the machine, 5 bytes" in caplog.text


def test_a_slow_disk_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training starts and reads what it needs; the readers ahead wait for it, and not the other way round."""
    backend, paths = DirectoryBackend(), filled(tmp_path / "cache", 30)
    slow, original = threading.Event(), os.preadv

    def preadv(*arguments: Any) -> int:
        slow.wait(60)
        return original(*arguments)

    monkeypatch.setattr(os, "preadv", preadv)
    cache = TextCache(tmp_path / "cache", backend)
    hooks.training_begins()
    assert [cache.backend.torch_load(path)["n"] for path in paths] == list(range(30))
    preload = tensor_caches().preload
    assert preload is not None and not preload.done.is_set() and len(backend.loads) == 30
    slow.set()
    assert preload.done.wait(60)
    assert [cache.backend.torch_load(path)["n"] for path in paths] == list(range(30)) and backend.loads.total() == 30


def test_steps_back_while_somebody_waits_for_a_read(tmp_path: Path) -> None:
    backend, paths = DirectoryBackend(), filled(tmp_path / "other", 1)
    filled(tmp_path / "cache", 60)
    entered, go = threading.Event(), threading.Event()

    def while_reading() -> None:
        entered.set()
        go.wait(60)

    backend.while_reading = while_reading
    begin_memory_run(unified(preload=False))
    demanding = TextCache(tmp_path / "other", backend)
    reading = threading.Thread(target=demanding.backend.torch_load, args=(paths[0],))
    store = tensor_caches().opened()
    reading.start()
    assert entered.wait(60)
    quiet = TextCache(tmp_path / "cache", DirectoryBackend())
    source, waiting = (quiet, quiet.backend, "host"), threading.Event()
    preload = preload_module.Preload(store, lambda: [source] if waiting.is_set() else [], threads=2, shown=False)
    with store.demanded():
        waiting.set()
        preload.training_begins()
        assert not preload.done.wait(0.6) and preload.entries == 0
    go.set()
    assert preload.done.wait(60) and preload.entries == 60
    reading.join()


def test_files_that_go_or_are_cut_between_list_and_read(tmp_path: Path) -> None:
    begin_memory_run(unified(preload=False))
    backend, paths = DirectoryBackend(), filled(tmp_path / "cache", 6)
    cache = TextCache(tmp_path / "cache", backend)
    sources: list[preload_module.Source] = []
    preload = preload_module.Preload(tensor_caches().opened(), lambda: sources, threads=2, shown=False)
    with tensor_caches().opened().demanded():
        sources.append((cache, backend, "host"))
        preload.training_begins()
        wait_for(lambda: len(preload._offered) == 6)
        Path(paths[1]).unlink()
        os.truncate(paths[2], 100)
        DirectoryBackend().torch_save({"n": 33}, paths[3])
    assert preload.done.wait(60)
    assert preload.entries == 4 and preload.left_out == {"vanished": 1, "unreadable": 1}
    assert "1 unreadable, 1 vanished" in preload.summary()
    assert [cache.backend.torch_load(paths[number])["n"] for number in (0, 3, 4, 5)] == [0, 33, 4, 5]
    assert not backend.loads


def test_ends_with_the_run_in_the_middle(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path / "cache", 400)
    cache = TextCache(tmp_path / "cache", DirectoryBackend())
    preload = tensor_caches().preload
    assert preload is not None
    wait_for(lambda: preload.report()["entries"] > 0)
    with caplog.at_level(logging.INFO, "gh200"):
        end()
    assert preload.done.is_set() and not [one for one in threading.enumerate() if "preload" in one.name]
    assert preload.entries + preload.left_out["not reached"] <= 400 and cache.cache_dir


@pytest.mark.slow(reason="writes and reads 100,000 files")
def test_100000_tiny_files(tmp_path: Path) -> None:
    one = Path(filled(tmp_path / "one", 1, size=8)[0]).read_bytes()
    for number in range(100_000):
        directory = tmp_path / "cache" / f"{number % 50}"
        if number < 50:
            directory.mkdir(parents=True)
        (directory / f"{number}.pt").write_bytes(one)
    cache = TextCache(tmp_path / "cache", DirectoryBackend())
    hooks.training_begins()
    preload = tensor_caches().preload
    assert preload is not None and preload.done.wait(500)
    assert preload.entries == 100_000 and cache.backend.torch_load(str(tmp_path / "cache/7/7.pt"))["n"] == 0


@pytest.mark.parametrize("method", ["torch_save", "write", "write_batch"])
@pytest.mark.parametrize("compressed", [False, True])
def test_what_is_written_is_cached(tmp_path: Path, method: str, compressed: bool) -> None:
    backend = PackingBackend() if compressed else DirectoryBackend()
    tier = TextCache(tmp_path, backend).backend
    base = torch.randn(8, 12)
    value = {"a": base.t(), "slice": base[2:4, 1:9], "n": [1, ("x", None)], "flag": torch.ones(3).bool()}
    path = str(tmp_path / "entry.pt")
    {
        "torch_save": lambda: tier.torch_save(value, path),
        "write": lambda: tier.write(path, value),
        "write_batch": lambda: tier.write_batch([path], [value]),
    }[method]()
    wanted = {key: item.clone() if torch.is_tensor(item) else item for key, item in value.items()}
    base.zero_()
    found = tier.torch_load(path)
    read_back = (PackingBackend() if compressed else DirectoryBackend()).torch_load(path)
    for key in ("a", "slice", "flag"):
        assert torch.equal(found[key], wanted[key]) and torch.equal(found[key], read_back[key])
        assert (found[key].stride(), found[key].dtype) == (read_back[key].stride(), read_back[key].dtype)
    assert found["n"] == value["n"] and not backend.loads and caches()["counts"]["held_when_written"] == 1


class PackingDirectory(Directory):
    """Compresses, as SimpleTuner does by default."""

    compress_cache = True

    def torch_save(self, data: Any, location: Any) -> None:
        packed = io.BytesIO()
        torch.save(data, packed)
        if isinstance(location, str):
            Path(location).write_bytes(gzip.compress(packed.getvalue()))
        else:
            location.write(gzip.compress(packed.getvalue()))

    def torch_load(self, filename: str) -> Any:
        plain = Path(f"{filename}.plain")
        plain.write_bytes(gzip.decompress(Path(filename).read_bytes()))
        self.loads[filename] += 1
        return torch.load(plain)


class PackingBackend(UnifiedCacheTier, PackingDirectory):
    """With the tier before it."""


class OtherDirectory(Directory):
    """Runs something of the test's in the middle of a write."""

    def __init__(self) -> None:
        super().__init__()
        self.instead: Any = super().torch_save

    def torch_save(self, data: Any, location: str) -> None:
        self.instead(data, location)


class OtherWriter(UnifiedCacheTier, OtherDirectory):
    """With the tier before it."""


def test_holds_only_what_the_file_holds(tmp_path: Path) -> None:
    """Another rank's file in the place of ours, or a value that changed while it was written: the file decides."""
    backend, plain = OtherWriter(), DirectoryBackend()
    tier = TextCache(tmp_path, backend).backend
    path, value = str(tmp_path / "entry.pt"), torch.zeros(5)
    backend.instead = lambda data, location: plain.torch_save(torch.ones(5), location)
    tier.torch_save(value, path)
    assert tier.torch_load(path).tolist() == [1] * 5 and not backend.loads

    def changed_meanwhile(data: Any, location: str) -> None:
        plain.torch_save(data, location)
        data.add_(7)

    backend.instead = changed_meanwhile
    tier.torch_save(value, path)
    assert tier.torch_load(path).tolist() == [0] * 5


def test_a_failed_write_holds_nothing(tmp_path: Path) -> None:
    backend = OtherWriter()
    tier = TextCache(tmp_path, backend).backend
    path = str(tmp_path / "entry.pt")
    tier.torch_save(torch.zeros(3), path)

    def full(data: Any, location: str) -> None:
        raise OSError(28, "No space left on device")

    backend.instead = full
    with pytest.raises(OSError, match="No space"):
        tier.torch_save(torch.ones(3), path)
    assert tier.torch_load(path).tolist() == [0] * 3 and backend.loads[path] == 1


def test_two_writers_of_one_entry(tmp_path: Path) -> None:
    backend, plain = OtherWriter(), DirectoryBackend()
    tier = TextCache(tmp_path, backend).backend
    path = str(tmp_path / "entry.pt")

    def interrupted(data: Any, location: str) -> None:
        plain.torch_save(data, location)
        if data.tolist() == [1]:
            tier.torch_save(torch.tensor([2]), path)

    backend.instead = interrupted
    tier.torch_save(torch.tensor([1]), path)
    assert tier.torch_load(path).tolist() == torch.load(path).tolist() == [2]


def test_the_limit_holds_for_what_is_written(tmp_path: Path) -> None:
    begin_memory_run(unified(memory_limit=2048, preload=False))
    backend = DirectoryBackend()
    tier = TextCache(tmp_path, backend).backend
    paths = [str(tmp_path / f"{number}.pt") for number in range(4)]
    for number, path in enumerate(paths):
        tier.torch_save(torch.full((256,), float(number)), path)
    assert [tier.torch_load(path)[0].item() for path in paths] == [0, 1, 2, 3]
    assert [backend.loads[path] for path in paths] == [0, 0, 1, 1]


def test_writes_in_many_threads_while_reading_ahead(tmp_path: Path) -> None:
    """A build and the reader ahead at once: whatever is served is what the file holds."""
    backend, paths = DirectoryBackend(), filled(tmp_path / "cache", 120)
    cache = TextCache(tmp_path / "cache", backend)

    def rewrite(part: int) -> None:
        for number in range(part, 120, 8):
            cache.backend.torch_save({"n": -number, "latents": torch.full((64,), -float(number))}, paths[number])

    writers = [threading.Thread(target=rewrite, args=(part,)) for part in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    read_ahead(cache)
    for number, path in enumerate(paths):
        found, stored = cache.backend.torch_load(path), torch.load(path)
        assert found["n"] == stored["n"] == (-number if number % 8 < 4 else number)
        assert torch.equal(found["latents"], stored["latents"])
    assert not backend.loads


def test_an_entry_written_by_a_forked_child_is_seen(tmp_path: Path) -> None:
    backend, paths = DirectoryBackend(), filled(tmp_path / "cache", 2)
    cache = TextCache(tmp_path / "cache", backend)
    read_ahead(cache)
    child = os.fork()
    if child == 0:
        try:
            cache.backend.torch_save({"n": 5}, paths[0])
            os._exit(0 if cache.backend.torch_load(paths[0]) == {"n": 5} else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert cache.backend.torch_load(paths[0]) == {"n": 5} and cache.backend.torch_load(paths[1])["n"] == 1


def test_leaves_an_entry_alone_that_is_being_cached_as_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a file's writing and its holding the reader ahead may find it."""
    backend = DirectoryBackend()
    cache, path = TextCache(tmp_path, backend), str(tmp_path / "entry.pt")
    original = store_module.read_entry

    def meanwhile(*arguments: Any, **options: Any) -> Any:
        read_ahead()
        return original(*arguments, **options)

    monkeypatch.setattr(store_module, "read_entry", meanwhile)
    cache.backend.torch_save(torch.ones(64), path)
    report = caches()
    assert report["preload"]["entries"] == 0 and report["counts"]["held_when_written"] == 1


def test_fills_managed_memory_from_its_threads(machine: Machine) -> None:
    machine.run("""
import tempfile
from pathlib import Path
import torch
from gh200_lab.memory_run import begin_memory_run, tensor_caches
from simpletuner.gh200.runtime import end
from tests.integration.backends.tensors.test_preload import TextCache, filled, read_ahead
from tests.cuda_sim.processes import Machine
from tests.support.fake_cache_backend import DirectoryBackend, unified

begin_memory_run(unified())
with tempfile.TemporaryDirectory() as name:
    backend, paths = DirectoryBackend(), filled(Path(name) / "cache", 40)
    cache = TextCache(Path(name) / "cache", backend, "vae")
    assert read_ahead(cache)["entries"] == 40
    assert tensor_caches().opened().managed
    for number, path in enumerate(paths):
        assert torch.equal(cache.backend.torch_load(path)["latents"], torch.full((64,), float(number)))
    assert not backend.loads
end()
""")
    assert len(machine.calls("cuMemFree_v2")) == len(machine.calls("cuMemAllocManaged")) == 1
