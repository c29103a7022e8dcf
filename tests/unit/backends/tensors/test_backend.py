"""The cache tier on real files: same values, fresh containers, no stale entry, nothing cached that must not be."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gh200_lab.memory_run import begin_memory_run, tensor_caches
from gh200_lab.place import ROOT
from simpletuner.gh200.backends.tensors import hooks
from simpletuner.gh200.backends.tensors.backend import UnifiedCacheTier
from simpletuner.gh200.backends.tensors.cache_kinds import consumer_of
from simpletuner.gh200.backends.tensors.directories import CacheDirectories
from simpletuner.gh200.config.cache_options import CacheOptions
from simpletuner.gh200.memory import hints
from tests.support.fake_cache_backend import Directory, DirectoryBackend, tiered, unified


@pytest.fixture(autouse=True)
def _one_run() -> Iterator[None]:
    hints.set_uvm_hint_override(None)
    begin_memory_run(unified())
    yield
    hints.set_uvm_hint_override(None)
    begin_memory_run(CacheOptions())


@pytest.fixture
def backend() -> DirectoryBackend:
    return DirectoryBackend()


@pytest.fixture
def tier(backend: DirectoryBackend) -> Any:
    return tiered(backend)


def counts() -> dict[str, int]:
    return tensor_caches().report()["caches"]["counts"]


def saved(directory: Path, value: Any, name: str = "entry.pt") -> str:
    path = str(directory / name)
    torch.save(value, path)
    return path


def test_off_changes_nothing(backend: DirectoryBackend, tmp_path: Path) -> None:
    begin_memory_run(CacheOptions())
    assert not tiered(backend).has_tier
    begin_memory_run(CacheOptions(kinds=frozenset({"text"}), hints=True))
    assert not tiered(backend, "vae").has_tier and vars(backend).keys() == vars(DirectoryBackend()).keys()
    assert hooks.known_finite(torch.ones(3)) is False


def test_entry_is_read_once_and_equal(tier: Any, backend: DirectoryBackend, tmp_path: Path) -> None:
    tensors = {"prompt_embeds": torch.randn(1, 7, 5).bfloat16(), "pooled": torch.randn(5), "e": torch.empty(0)}
    entry = tensors | {"n": [1, ("a", None)]}
    path = saved(tmp_path, entry)
    for _ in range(5):
        found = tier.torch_load(path)
        assert found["n"] == [1, ("a", None)] and found.keys() == entry.keys()
        assert all(torch.equal(found[key], entry[key]) for key in ("prompt_embeds", "pooled", "e"))
    assert backend.loads[path] == 1 and counts() == {"admitted": 1}


def test_users_may_assign_into_what_they_get(tier: Any, backend: DirectoryBackend, tmp_path: Path) -> None:
    """What the text cache does: the last entry's embeds are overwritten with the whole batch."""
    paths = [saved(tmp_path, {"prompt_embeds": torch.full((1, 2), float(n)), "l": [n]}, f"{n}.pt") for n in range(3)]
    for _ in range(2):
        entries = [tier.torch_load(path) for path in paths]
        entries[-1]["prompt_embeds"] = torch.cat([entry["prompt_embeds"] for entry in entries])
        entries[-1]["l"].append("mine")
        assert entries[-1]["prompt_embeds"].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert sum(backend.loads.values()) == 3


def test_write_into_a_cached_tensor_is_noticed_and_named(
    tier: Any, backend: DirectoryBackend, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = saved(tmp_path, {"latents": torch.zeros(4), "other": torch.ones(2)})
    neighbour = saved(tmp_path, torch.zeros(4), "neighbour.pt")
    tier.torch_load(neighbour)
    tier.torch_load(path)["other"].mul_(3)
    assert tier.torch_load(path)["other"].tolist() == [1, 1]
    assert path in caplog.text and "written to in place" in caplog.text
    tier.torch_load(neighbour)
    assert backend.loads == {path: 2, neighbour: 1} and counts()["written_to"] == 1


@pytest.mark.parametrize("method", ["torch_save", "write", "write_batch"])
def test_writes_are_seen_and_reach_the_file(tier: Any, tmp_path: Path, method: str) -> None:
    path = saved(tmp_path, torch.zeros(3))
    tier.torch_load(path)
    new = torch.ones(3)
    {
        "torch_save": lambda: tier.torch_save(new, path),
        "write": lambda: tier.write(path, new),
        "write_batch": lambda: tier.write_batch([path], [new]),
    }[method]()
    assert torch.equal(tier.torch_load(path), new) and torch.equal(torch.load(path), new)


def test_delete_clears_the_entry(tier: Any, tmp_path: Path) -> None:
    path = saved(tmp_path, torch.zeros(3))
    tier.torch_load(path)
    assert tier.exists(path)
    tier.delete(path)
    assert not tier.exists(path)
    with pytest.raises(FileNotFoundError):
        tier.torch_load(path)


def test_rebuild_by_another_process_is_seen_after_a_listing(
    tier: Any, backend: DirectoryBackend, tmp_path: Path
) -> None:
    kept, changed, gone = (saved(tmp_path, torch.zeros(3), f"{name}.pt") for name in ("kept", "changed", "gone"))
    for path in (kept, changed, gone):
        tier.torch_load(path)
    DirectoryBackend().torch_save(torch.ones(3), changed)
    os.unlink(gone)
    tier.list_files(file_extensions=["pt"], instance_data_dir=str(tmp_path))
    assert torch.equal(tier.torch_load(changed), torch.ones(3)) and not tier.exists(gone)
    tier.torch_load(kept)
    assert backend.loads[kept] == 1 and counts()["changed_on_disk"] == 2


def test_two_caches_with_one_directory_share_entries(tier: Any, backend: DirectoryBackend, tmp_path: Path) -> None:
    other = DirectoryBackend("other")
    second = tiered(other, "text")
    path = saved(tmp_path, torch.zeros(3))
    tier.torch_load(path)
    second.torch_load(path)
    assert backend.loads[path] == 1 and not other.loads
    second.torch_save(torch.ones(3), path)
    assert torch.equal(tier.torch_load(path), torch.ones(3))


def test_spellings_of_one_path_are_one_entry(tier: Any, backend: DirectoryBackend, tmp_path: Path) -> None:
    path = saved(tmp_path, torch.zeros(3))
    (tmp_path / "sub").mkdir()
    tier.torch_load(path)
    tier.torch_load(f"{tmp_path}/sub/../entry.pt")
    tier.torch_load(Path(path))
    assert sum(backend.loads.values()) == 1
    tier.delete(f"{tmp_path}/./entry.pt")
    assert not tier.exists(path)


def test_limit_keeps_early_entries_and_reads_the_rest(
    backend: DirectoryBackend, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begin_memory_run(unified(memory_limit=2048))
    tier = tiered(backend)
    paths = [saved(tmp_path, torch.full((256,), float(n)), f"{n}.pt") for n in range(4)]
    for _ in range(3):
        assert [tier.torch_load(path)[0].item() for path in paths] == [0, 1, 2, 3]
    assert [backend.loads[path] for path in paths] == [1, 1, 3, 3]
    assert caplog.text.count("limit of 2048 bytes") == 1 and counts()["refused_full"] == 6


def test_limit_below_one_entry_holds_nothing(backend: DirectoryBackend, tmp_path: Path) -> None:
    begin_memory_run(unified(memory_limit=100))
    tier = tiered(backend)
    path = saved(tmp_path, {"a": torch.ones(4), "b": torch.ones(4)})
    assert tier.torch_load(path)["b"].tolist() == tier.torch_load(path)["a"].tolist()
    assert backend.loads[path] == 2
    assert tensor_caches().report()["caches"]["packed_bytes"] == 0


def test_override_flipped_during_a_run(tier: Any, backend: DirectoryBackend, tmp_path: Path) -> None:
    path = saved(tmp_path, torch.zeros(3))
    tier.torch_load(path)
    hints.set_uvm_hint_override(False)
    tier.torch_load(path).add_(1)
    assert backend.loads[path] == 2 and not hooks.known_finite(tier.torch_load(path))
    tier.torch_save(torch.ones(3), path)
    hints.set_uvm_hint_override(None)
    assert torch.equal(tier.torch_load(path), torch.ones(3))


def test_types_a_view_cannot_stand_for_are_read_each_time(tier: Any, backend: DirectoryBackend, tmp_path: Path) -> None:
    path = saved(tmp_path, {"w": torch.nn.Parameter(torch.ones(2)), "t": torch.ones(2)})
    for _ in range(2):
        assert isinstance(tier.torch_load(path)["w"], torch.nn.Parameter)
    assert backend.loads[path] == 2 and counts() == {"refused_type": 2}
    assert tensor_caches().report()["caches"]["payload_bytes"] == 0


class Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return os.mkdir, (str(self.mark),)


def test_bad_files_are_errors_that_name_the_file(tier: Any, tmp_path: Path) -> None:
    whole = Path(saved(tmp_path, torch.randn(1000), "whole.pt")).read_bytes()
    bad = {
        "truncated": whole[: len(whole) // 2],
        "damaged": whole[:-64] + bytes(64),
        "foreign": b"\x89PNG\r\n" + bytes(100),
        "empty": b"",
        "malicious": pickle.dumps(Bomb(tmp_path / "executed")),
    }
    torch.save(Bomb(tmp_path / "executed"), tmp_path / "zipped.pt")
    bad["zipped"] = (tmp_path / "zipped.pt").read_bytes()
    for name, content in bad.items():
        path = tmp_path / f"{name}.pt"
        path.write_bytes(content)
        with pytest.raises(Exception) as caught:
            tier.torch_load(str(path))
        assert any(str(path) in note for note in caught.value.__notes__), name
    assert not (tmp_path / "executed").exists() and not counts()


def test_unsafe_torch_loading_keeps_the_tier_away(
    backend: DirectoryBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(hooks.UNSAFE_LOADING, "1")
    assert not tiered(backend).has_tier
    assert hooks.UNSAFE_LOADING in caplog.text


def test_tier_of_a_copy_in_another_process_is_off(tier: Any, backend: DirectoryBackend, tmp_path: Path) -> None:
    path = saved(tmp_path, torch.ones(3))
    tier.torch_load(path)
    backend.while_reading = print  # what a test has there cannot be pickled
    copied = pickle.loads(pickle.dumps(tier))
    assert not copied.has_tier and copied.id == "files" and copied.torch_load(path).tolist() == [1, 1, 1]
    assert tier.has_tier and backend.loads[path] == 1


@pytest.mark.parametrize("kind", ["aws", "memory"])
def test_caches_that_are_not_in_a_local_directory_are_named_once(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    far, near = (
        SimpleNamespace(cache_data_backend=Directory(name, of)) for name, of in (("far", kind), ("near", "local"))
    )
    tracker = SimpleNamespace(data_backends={"a": {"vaecache": far}, "b": {"vaecache": near}, "c": {"vaecache": far}})
    monkeypatch.setitem(
        sys.modules, "simpletuner.helpers.training.state_tracker", SimpleNamespace(StateTracker=tracker)
    )
    hooks.training_begins()
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.count(f'the vae cache of backend "far" (type {kind})') == 1 and "near" not in warning
    caplog.clear()
    begin_memory_run(CacheOptions(kinds=frozenset({"text"}), hints=True))
    hooks.training_begins()
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_tier_overrides_only_what_the_patch_expects() -> None:
    patch = tomllib.loads((ROOT / "patches" / "05-data-backend.toml").read_text())
    expected = {one["name"].rpartition(".")[2] for one in patch["expect"] if one["file"].endswith("/local.py")}
    answered = {name for name in vars(UnifiedCacheTier) if hasattr(Directory, name) and not name.startswith("_")}
    assert len(answered) == 7 and answered <= expected
    expected = {one["name"] for one in patch["expect"]}
    assert {f"FactoryRegistry.{name}" for name in CacheDirectories.answers()} <= expected


def test_image_embeds_of_a_backend_of_latents_are_for_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = SimpleNamespace(StateTracker=SimpleNamespace(data_backends={}))
    monkeypatch.setitem(sys.modules, "simpletuner.helpers.training.state_tracker", tracker)
    assert consumer_of("vae", "/cache/embeds/1.pt") == "device"
    embeds = SimpleNamespace(cache_dir="/cache/embeds", cache_data_backend=None)
    latents = SimpleNamespace(cache_dir="/cache/latents", cache_data_backend=None)
    tracker.StateTracker.data_backends["a"] = {"vaecache": latents, "conditioning_image_embed_cache": embeds}
    assert consumer_of("vae", "/cache/embeds/1.pt") == "host"
    assert consumer_of("text", "/cache/embeds/1.pt") == "host"
    assert consumer_of("vae", "/cache/embeds-2/1.pt") == consumer_of("vae", "/cache/latents/1.pt") == "device"


def test_a_write_during_a_read_leaves_no_old_entry(tier: Any, backend: DirectoryBackend, tmp_path: Path) -> None:
    path = saved(tmp_path, torch.zeros(3))
    backend.while_reading = lambda: tier.torch_save(torch.ones(3), path)
    tier.torch_load(path)
    backend.while_reading = lambda: None
    assert torch.equal(tier.torch_load(path), torch.ones(3))


def test_threads_see_only_values_that_were_written(tier: Any, tmp_path: Path) -> None:
    paths = [saved(tmp_path, torch.zeros(64), f"{n}.pt") for n in range(4)]
    written = [0] * len(paths)
    problems: list[str] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            for n, path in enumerate(paths):
                floor = written[n]
                value = tier.torch_load(path)
                if value.min() != value.max() or value[0] < floor:
                    problems.append(f"{path}: {value.min()}..{value.max()} after {floor} was written")

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    for number in range(1, 40):
        for n, path in enumerate(paths):
            tier.torch_save(torch.full((64,), float(number)), path)
            written[n] = number
    stop.set()
    for reader in readers:
        reader.join()
    assert not problems, problems[:3]
