"""The in-memory dataset backend in the real fork: equivalent to `local`, and training from it is bit-identical."""

from __future__ import annotations

import importlib
import json
import pickle
from pathlib import Path
from typing import Any, get_args

import pytest
import tiny
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from preloaded import Preloaded

from gh200_lab.tiny.run import cached, weights
from simpletuner.gh200.backends import builders
from simpletuner.gh200.backends.ram import hooks as in_memory_sites
from simpletuner.gh200.config.schema import CodecName

pytestmark = pytest.mark.usefixtures("own_run")


@pytest.fixture(scope="module")
def lab() -> Any:
    """Imported by the tests that run: it needs the fork, and half a minute."""
    return importlib.import_module("ram_differential")


@pytest.mark.parametrize("compression", [None, *get_args(CodecName)])
def test_in_memory_and_local_give_the_same_results(lab: Any, compression: str | None) -> None:
    machine = type("Machine", (lab.Differential,), {"compression": compression})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=12,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )


@pytest.fixture
def tree(lab: Any, tmp_path: Path) -> Path:
    lab.make_tree(tmp_path / "data")
    return tmp_path / "data"


def test_the_builder_and_the_factory_site_stage_the_directory(lab: Any, tree: Path) -> None:
    class Accelerator:
        is_local_main_process = True

    built = lab.InMemoryBackendBuilder(Accelerator())._create_backend(
        lab.Config(tree, in_memory={"compression": "zlib"})
    )
    assert isinstance(built, lab.GH200InMemoryBackend) and built.options.compression == "zlib"
    in_memory_sites.local_entries([{"id": "photos", "type": "in_memory", "instance_data_dir": "unused"}])
    wrapped = builders.local_dataset(lab.Config(tree), lab.LocalDataBackend(Accelerator(), "photos", True))
    assert wrapped.staged_files == built.staged_files > 5
    assert wrapped.type == "local" and wrapped.compress_cache and isinstance(wrapped.accelerator, Accelerator)


def test_reads_come_from_ram_until_the_epoch_check_sees_the_change(
    lab: Any, tree: Path, caplog: pytest.LogCaptureFixture
) -> None:
    in_memory_sites.local_entries([{"id": "photos", "type": "in_memory", "instance_data_dir": str(tree)}])
    backend = builders.local_dataset(lab.Config(tree), lab.LocalDataBackend(None, "photos"))
    (tree / "a.txt").write_text("changed on disk")
    assert backend.read(str(tree / "a.txt")).startswith(b"a red square")
    in_memory_sites.epoch_started()
    assert backend.read(str(tree / "a.txt")) == b"changed on disk"
    assert f"{tree}/a.txt" in caplog.text


def test_a_file_that_is_added_later_is_named_once(lab: Any, tree: Path, caplog: pytest.LogCaptureFixture) -> None:
    backend = lab.GH200InMemoryBackend(None, "photos", instance_data_dir=tree)
    backend.read(str(tree / "a.txt")), backend.write(str(tree / "a.txt"), b"written"), backend.read(str(tree / "a.txt"))
    with pytest.raises(FileNotFoundError):
        backend.read(str(tree / "none.txt"))
    backend.torch_save({}, str(tree / "latent.pt"))
    backend.torch_load(str(tree / "latent.pt"))
    assert "Added" not in caplog.text
    (tree / "later\x1b.png").write_bytes((tree / "a.png").read_bytes())
    for _ in range(2):
        assert backend.read_image(str(tree / "later\x1b.png")).size == backend.read_image(str(tree / "a.png")).size
    assert caplog.text.count("(id=photos) Added after staging and read from disk: ") == 1
    assert "later\\x1b.png" in caplog.text
    for number in range(50):
        (tree / f"{number}.txt").write_bytes(b"x")
        assert backend.read(str(tree / f"{number}.txt")) == b"x"
    assert caplog.text.count("Added after staging") == 21 and "further files" in caplog.text


def test_a_directory_with_two_names_is_staged_under_the_one_upstream_lists(lab: Any, tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"m{number}").mkdir()
        (tmp_path / f"m{number}/a.png").write_bytes(bytes(number))
        (tmp_path / f"{'az'[number % 2]}{number}").symlink_to(f"m{number}")
    backend = lab.GH200InMemoryBackend(None, "x", instance_data_dir=tmp_path)
    listed = [path for _, _, files in backend.list_files(["png"], str(tmp_path)) for path in files]
    assert len(listed) == 20 and all(backend.is_staged(path) for path in listed)


def test_after_the_release_files_are_read_from_disk(lab: Any, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = lab.GH200InMemoryBackend(None, "x", instance_data_dir=tree)
    monkeypatch.chdir(tree)
    assert backend.is_staged(tree / "a.txt") and backend.is_staged("a.txt")
    assert not backend.is_staged(str(tree / "saved.pt")) and not backend.is_staged(bytes(tree / "a.txt"))
    staged = backend.read(str(tree / "a.txt"))
    backend.release()
    assert not backend.is_staged(tree / "a.txt") and backend.read(str(tree / "a.txt")) == staged


@pytest.mark.parametrize(
    ("entry", "args", "freed"),
    [
        ({}, {}, False),
        ({"in_memory": {"release_after_cache": True}}, {}, True),
        ({"in_memory": {"release_after_cache": True}, "vae_cache_ondemand": True}, {}, False),
        ({"in_memory": {"release_after_cache": True}}, {"vae_cache_clear_each_epoch": True}, False),
        ({"in_memory": {"release_after_cache": True}, "dataset_type": "conditioning"}, {}, False),
    ],
)
def test_memory_is_freed_after_the_caches_only_where_asked_and_unused(
    lab: Any, tree: Path, entry: dict[str, Any], args: dict[str, Any], freed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    in_memory_sites.local_entries([{"id": "photos", "type": "in_memory", "instance_data_dir": str(tree)} | entry])
    backend = builders.local_dataset(lab.Config(tree), lab.LocalDataBackend(None, "photos"))
    in_memory_sites.caches_built(args)
    assert (backend.staged_files == 0) is freed
    assert "still read" in caplog.text or freed


def test_a_pickled_backend_reads_from_disk_and_what_it_writes_is_seen(lab: Any, tree: Path) -> None:
    backend = lab.GH200InMemoryBackend(None, "x", instance_data_dir=tree)
    backend.dataset_type = "image"
    again = pickle.loads(pickle.dumps(backend))
    assert not again.staged_files and again.read(str(tree / "a.txt")) == backend.read(str(tree / "a.txt"))
    assert again.dataset_type == "image"
    (tree / "a.txt").write_bytes(b"by another process")
    assert backend.read(str(tree / "a.txt")) == b"by another process" and backend.is_staged(tree / "sub/b.txt")


def test_what_processes_of_upstreams_write_is_never_served_stale(lab: Any, tree: Path) -> None:
    """Conditioning generation: they get a description of the target, here of another dataset on the same directory."""
    in_memory_sites.local_entries([{"id": "photos", "type": "in_memory", "instance_data_dir": str(tree)}])
    ram = builders.local_dataset(lab.Config(tree), lab.LocalDataBackend(None, "photos"))
    target = lab.Config(tree)
    target.id = "edges"
    writer = builders.local_dataset(target, lab.LocalDataBackend(None, "edges"))
    rebuilt = lab.LocalDataBackend.from_instance_representation(writer.get_instance_representation())
    rebuilt.write(str(tree / "a.txt"), b"generated")
    assert ram.read(str(tree / "a.txt")) == b"generated"
    later = lab.GH200InMemoryBackend(None, "later", instance_data_dir=tree / "sub")
    rebuilt.write(str(tree / "sub/b.txt"), b"generated later")
    assert later.read(str(tree / "sub/b.txt")) == b"generated later"


IN_RAM = {"type": "in_memory", "in_memory": {"compression": "lz4"}}


def test_training_from_ram_is_bit_identical_to_local(tmp_path: Path, forked: Preloaded) -> None:
    """Cold, four buckets: the same buckets, cache files, updates and weights."""
    lab = tiny.Lab(tmp_path, forked)
    seen = {}
    for name, kind in (("local", {}), ("ram", IN_RAM)):
        lab.entry_changes |= kind
        run = lab.watched(name, cold=True)
        assert run.code == 0, run.text[-4000:]
        (listed,) = (tmp_path / "images").glob("aspect_ratio_bucket_indices*.json")
        buckets = json.loads(listed.read_text())["aspect_ratio_bucket_indices"]
        members = {shape: sorted(paths) for shape, paths in buckets.items()}
        seen[name] = (members, cached(tmp_path / "cache"), run.updates(), weights(run.output))
        assert run.text.count("Staged 24 files") == (1 if kind else 0)
    assert seen["ram"] == seen["local"]
    assert len(seen["ram"][0]) == 4 and len(seen["ram"][1]) >= 24 and len(seen["ram"][2]) == 6


@pytest.mark.slow(reason="three trainings, two of them with two ranks")
def test_two_ranks_share_one_staged_dataset(tmp_path: Path, forked: Preloaded) -> None:
    """Warm: with two ranks upstream's own first scan is a race that two runs of `local` lose differently."""
    lab = tiny.Lab(tmp_path, forked)
    assert lab.watched("scan").code == 0
    seen = {}
    for name, kind in (("local", {}), ("ram", IN_RAM)):
        lab.entry_changes |= kind
        run = lab.watched(name, launcher=Preloaded(place=forked.place, ranks=2))
        assert run.code == 0, run.text[-4000:]
        seen[name] = weights(run.output)
        assert run.text.count("Staged 24 files") == (1 if kind else 0)
    assert seen["ram"] == seen["local"] and seen["ram"]
