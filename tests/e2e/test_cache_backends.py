"""What the builder of a run returns for caches in unified memory: upstream's local backend, also for a dataset in RAM."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gh200_lab.memory_run import begin_memory_run, store, tensor_caches
from simpletuner.gh200 import runtime
from simpletuner.gh200.config.cache_options import CacheOptions

LATENTS = CacheOptions(kinds=frozenset({"vae", "image_embed"}), hints=True, preload=False)


@pytest.fixture(autouse=True)
def _one_run() -> Iterator[None]:
    begin_memory_run(LATENTS)
    yield
    runtime.end()


def built(name: str, directory: Path, dataset_type: str = "image") -> Any:
    from simpletuner.helpers.data_backend.builders import create_backend_builder

    config = SimpleNamespace(
        id=name, dataset_type=dataset_type, compress_cache=False, config={}, instance_data_dir=str(directory)
    )
    return create_backend_builder("local", None)._create_backend(config)


def entries(directory: Path) -> list[dict[str, Any]]:
    return [{"id": "photos", "type": "in_memory", "instance_data_dir": str(directory)}]


def served_from_memory(backend: Any, path: Path) -> bool:
    before = store().hits()
    found = backend.torch_load(str(path))
    return store().hits() == before + 1 and torch.equal(found, torch.load(path))


def test_a_local_cache_backend_is_upstreams_with_our_methods_before_it(tmp_path: Path) -> None:
    from simpletuner.helpers.data_backend.local import LocalDataBackend

    backend, path = built("photos", tmp_path), tmp_path / "cache/1.pt"
    assert isinstance(backend, LocalDataBackend) and (backend.type, backend.id) == ("local", "photos")
    backend.write_batch([str(path)], [torch.arange(6.0)])
    assert backend.exists(str(path)) and served_from_memory(backend, path)
    backend.delete(str(path))
    assert not backend.exists(str(path)) and not path.exists()
    with pytest.raises(FileNotFoundError):
        backend.torch_load(str(path))
    assert type(built("words", tmp_path, "text_embeds")) is LocalDataBackend, "the text cache is off"


def test_only_local_backends_are_built_by_us() -> None:
    from simpletuner.gh200.backends.builders import backend_builders

    class Upstreams:
        """Of another kind, or of local ones."""

    given = {"local": Upstreams, "aws": Upstreams, "memory": Upstreams}
    inside = backend_builders(given)
    assert inside["aws"] is inside["memory"] is Upstreams and issubclass(inside["local"], Upstreams)
    runtime.end()
    assert backend_builders(given)["local"] is Upstreams


def test_one_backend_serves_a_dataset_in_ram_and_its_cache(tmp_path: Path) -> None:
    from simpletuner.gh200.backends.ram.backend import GH200InMemoryBackend
    from simpletuner.gh200.backends.ram.hooks import local_entries

    (tmp_path / "data").mkdir()
    caption, latent = tmp_path / "data/1.txt", tmp_path / "data/cache/1.pt"
    caption.write_text("a square")
    local_entries(entries(tmp_path / "data"))
    backend = built("photos", tmp_path / "data")
    assert isinstance(backend, GH200InMemoryBackend) and backend.type == "local"
    assert backend.is_staged(str(caption)) and backend.read(str(caption)) == b"a square"
    backend.write(str(latent), torch.ones(5))
    assert served_from_memory(backend, latent)
    backend.torch_save(torch.zeros(5), str(latent))
    assert served_from_memory(backend, latent) and not backend.torch_load(str(latent)).any()
    backend.write(str(caption), "another")
    assert backend.read(str(caption)) == b"another" and not backend.is_staged(str(caption))

    copied = pickle.loads(pickle.dumps(backend))
    assert not copied.has_tier and copied.torch_load(str(latent)).tolist() == [0] * 5
    beside = built("same-directory", tmp_path / "data")
    assert isinstance(beside, GH200InMemoryBackend) and served_from_memory(beside, latent)


def test_one_backend_serves_two_caches_by_their_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from simpletuner.helpers.training.state_tracker import StateTracker

    backend = built("photos", tmp_path)
    caches = {
        key: SimpleNamespace(cache_dir=str(tmp_path / key), cache_data_backend=backend)
        for key in ("vaecache", "conditioning_image_embed_cache")
    }
    monkeypatch.setattr(StateTracker, "data_backends", {"photos": caches})
    for number, cache in enumerate(caches.values()):
        backend.write(f"{cache.cache_dir}/1.pt", torch.full((16,), float(number)))
    assert [backend.torch_load(f"{cache.cache_dir}/1.pt")[0].item() for cache in caches.values()] == [0, 1]
    assert {consumer: stats.tensors for consumer, stats in store().stats().items()} == {"device": 1, "host": 1}
    assert tensor_caches().report()["caches"]["counts"] == {"held_when_written": 2, "admitted": 2}
