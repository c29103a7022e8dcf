"""What collate gets: known-finite latents, placement, prefetch one batch ahead; and where the files of a run go."""

from __future__ import annotations

import copy
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gh200_lab.memory_run import begin_memory_run, store
from gh200_lab.place import ROOT
from simpletuner.gh200.backends.tensors import directories as cache_dirs
from simpletuner.gh200.backends.tensors import hooks
from simpletuner.gh200.config.cache_options import CacheOptions
from simpletuner.gh200.memory import hints
from simpletuner.gh200.runtime import end
from simpletuner.gh200.state import StateHooks
from tests.cuda_sim.processes import Machine, read_log
from tests.support.fake_cache_backend import DirectoryBackend, tiered, unified


@pytest.fixture(autouse=True)
def _one_run() -> Iterator[None]:
    hints.set_uvm_hint_override(None)
    begin_memory_run(unified())
    yield
    begin_memory_run(CacheOptions())


def cached(directory: Path, value: Any, name: str = "latent.pt") -> Any:
    torch.save(value, directory / name)
    return tiered(DirectoryBackend()).torch_load(str(directory / name))


def placed(directory: Path, value: Any, name: str = "latent.pt") -> Any:
    found = cached(directory, value, name)
    other = hooks.placed_latent(found)
    return found if other is None else other


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_known_finite_only_for_finite_entries(tmp_path: Path, bad: float) -> None:
    good = placed(tmp_path, torch.randn(4, 8, 8).bfloat16())
    assert hooks.known_finite(good) and hooks.known_finite(good.to("cpu"))
    wrong = placed(tmp_path, {"latents": torch.tensor([1.0, bad, 2.0])}, "bad.pt")
    assert not hooks.known_finite(wrong["latents"])


def test_known_finite_forgets_a_latent_that_was_written_to(tmp_path: Path) -> None:
    latent = placed(tmp_path, torch.randn(8))
    assert hooks.known_finite(latent)
    latent[3] = math.nan
    assert not hooks.known_finite(latent)
    assert not hooks.known_finite(torch.randn(8)) and not hooks.known_finite(latent.clone())


def test_known_finite_leaves_dtypes_without_the_check_to_upstream(tmp_path: Path) -> None:
    assert not hooks.known_finite(placed(tmp_path, torch.ones(4).to(torch.float8_e4m3fn)))


def test_known_finite_looks_and_does_nothing(tmp_path: Path) -> None:
    latent = cached(tmp_path, torch.randn(8))
    slot = store().slot_of(latent)
    assert not hooks.known_finite(latent) and slot is not None and slot.finite is None
    hooks.placed_latent(latent)
    assert slot.finite is True


def test_placed_latent_without_an_accelerator_is_the_view_itself(tmp_path: Path) -> None:
    if torch.accelerator.is_available():
        pytest.skip("this machine has an accelerator")
    latent = cached(tmp_path, torch.randn(8))
    assert hooks.placed_latent(latent) is latent
    entry = cached(tmp_path, {"latents": torch.randn(8), "n": 3}, "dict.pt")
    placed = hooks.placed_latent(entry)
    assert placed is not entry and placed["latents"] is entry["latents"] and placed["n"] == 3
    other = torch.randn(8)
    assert hooks.placed_latent(other) is other, "what is not cached cannot be pinned either"


def test_upstream_prefetch_is_recognised() -> None:
    args = type("Args", (), {"dataloader_prefetch_device_threshold_mb": 0.5})
    assert hooks.upstream_prefetches(args) and not hooks.upstream_prefetches(object())


ON_THE_DRIVER = """
import torch
from gh200_lab.memory_run import begin_memory_run, store, tensor_caches
from simpletuner.gh200.runtime import end
from tests.support.fake_cache_backend import DirectoryBackend, tiered, unified
from simpletuner.gh200.backends.tensors import hooks
from simpletuner.gh200.memory import hints
def load(backend, n, size=40_000):
    torch.save(torch.full((size,), float(n)), f"{n}.pt")
    return backend.torch_load(f"{n}.pt")
def trained(steps=2, since=0):
    for step in range(since, since + steps + 1):
        hooks.micro_batch_begins(step)
def collated(latents):
    # what collate does with them, up to the kernels
    for latent in latents:
        hooks.placed_latent(latent)
    hooks._prefetch(tensor_caches(), latents)
    assert all(hooks.known_finite(latent) for latent in latents)
def prefetches():
    return hints.current().report()["hints"]["cache_prefetch"]
"""


@pytest.mark.parametrize(("version", "calls"), [(13000, 2), (12090, 6)])
def test_prefetch_is_one_call_a_batch_and_the_reader_comes_after(machine: Machine, version: int, calls: int) -> None:
    machine.run(
        ON_THE_DRIVER
        + """
begin_memory_run(unified())
backend = tiered(DirectoryBackend())
latents = [load(backend, n) for n in range(6)]
trained()
for epoch in range(3):
    collated(latents[::2])
    collated(latents[1::2])
assert prefetches() == {"applied": 2, "resident": 12}, prefetches()
end()
""",
        version=version,
    )
    moved = machine.calls("cuMemPrefetchBatchAsync" if version >= 13000 else "cuMemPrefetchAsync_v2")
    assert len(moved) == calls and {call["result"] for call in moved} == {"0"}
    log = [(name, call) for name, call in read_log(machine.log) if "Prefetch" in name or "Event" in name]
    (stream,) = {call["stream"] for call in moved}
    waits = [index for index, (name, _) in enumerate(log) if name == "cuStreamWaitEvent"]
    for index in waits:
        (recorded, event), (_, waited) = log[index - 1], log[index]
        assert recorded == "cuEventRecord" and event["event"] == waited["event"] and event["stream"] == stream
        assert waited["stream"] == "0" != stream, "the stream of the kernels that read"
    assert len(waits) == 2
    destroyed = [len(machine.calls(name)) for name in ("cuStreamDestroy_v2", "cuEventDestroy_v2")]
    assert destroyed == [1, 1], "what a run makes goes with it"


def test_prefetch_of_neighbours_is_one_range(machine: Machine) -> None:
    machine.run(
        ON_THE_DRIVER
        + """
begin_memory_run(unified())
backend = tiered(DirectoryBackend())
latents = [load(backend, n) for n in range(4)]
trained()
collated(latents)
assert prefetches() == {"applied": 1}
"""
    )
    (moved,) = machine.calls("cuMemPrefetchAsync_v2")
    assert int(moved["bytes"]) == 10 * 65536, "four times 160,000 bytes, in whole pages"


def test_prefetch_steps_back_while_a_batch_is_still_moving(machine: Machine) -> None:
    machine.run(
        ON_THE_DRIVER
        + """
begin_memory_run(unified())
backend = tiered(DirectoryBackend())
latents = [load(backend, n) for n in range(4)]
trained()
for latent in latents:
    collated([latent])
assert prefetches() == {"applied": 1, "stepped_back": 3}
begin_memory_run(unified(access_pattern="cpu_first"))
backend = tiered(DirectoryBackend())
collated([load(backend, 9)])
assert "cache_prefetch" not in hints.current().report()["hints"]
""",
        events_never_ready=1,
    )


FREE = """
from simpletuner.gh200.memory.driver import load_driver
MIB = 1 << 20
def free():
    return load_driver().memory_info(0)[0]
"""


@pytest.mark.parametrize("since", [0, 1000])
def test_gpu_first_takes_of_hbm_what_training_leaves_less_a_margin(machine: Machine, since: int) -> None:
    """In NUMA mode a page that prefers the GPU is made in HBM already by the CPU that fills it."""
    machine.run(
        ON_THE_DRIVER
        + FREE
        + f"""
begin_memory_run(unified())
whole = free()
backend = tiered(DirectoryBackend())
latents = [load(backend, n, MIB) for n in range(14)]
assert free() == whole, "admission takes nothing that upstream would measure"
collated(latents[:4])
assert free() == whole and prefetches() == {{"beyond_share": 4}}
trained(1, since={since})
collated(latents[:4])
assert free() == whole, "the first step is not over"
trained(2, since={since})
share = hints.current().report()["hbm_share"]
margin = 40 * MIB // 10
assert share["bytes"] == whole - margin and share["given"] <= share["bytes"], share
for start in range(0, 14, 2):
    collated(latents[start:start + 2])
assert margin <= free() < margin + 5 * MIB, free()
assert prefetches()["beyond_share"] == 8 + 5 and prefetches()["applied"] == 5, prefetches()
later = [load(backend, n, MIB) for n in range(14, 18)]
collated(later)
assert free() >= margin, "entries that come later have the same bound"
assert [int(latent[0]) for latent in latents + later] == list(range(18))
del latents, later
end()
assert free() == whole
""",
        mode="numa", hbm=40 << 20,
    )  # fmt: skip


def test_share_of_hbm_is_measured_after_training_took_its_own(machine: Machine) -> None:
    machine.run(
        ON_THE_DRIVER
        + FREE
        + """
begin_memory_run(unified(access_pattern="balanced"))
backend = tiered(DirectoryBackend())
latents = [load(backend, n, MIB) for n in range(4)]
hooks.micro_batch_begins(0)
with load_driver().on_device(0):
    load_driver().call("cuMemAlloc", 32 * MIB)
hooks.micro_batch_begins(1)
hooks.micro_batch_begins(2)
assert hints.current().report()["hbm_share"]["bytes"] == 4 * MIB
collated(latents)
assert free() == 4 * MIB and prefetches() == {"beyond_share": 3, "applied": 1}
""",
        mode="numa", hbm=40 << 20,
    )  # fmt: skip


def test_cdmm_is_cpu_first_whatever_is_asked(machine: Machine) -> None:
    """There a page in HBM cannot be mapped by the CPU, and ordinary memory never moves."""
    machine.run(
        ON_THE_DRIVER
        + FREE
        + """
from simpletuner.gh200 import runtime
from simpletuner.gh200.memory.batch import optimize_batch_for_gh200
from simpletuner.gh200.config.cache_options import CacheOptions
from simpletuner.gh200.config.sources import read_settings
raw = {"gh200_optimizations": {"enable_uvm_hints": True, "uvm_access_pattern": "gpu_first"}}
settings = read_settings(raw, {})
begun = runtime.begin(settings, CacheOptions.from_settings(settings))
assert "cpu_first instead of gpu_first" in begun.on[runtime.HINTS] and "CDMM" in begun.on[runtime.HINTS], begun.on
begin_memory_run(unified())
whole = free()
backend = tiered(DirectoryBackend())
latents = [load(backend, n) for n in range(4)]
trained()
collated(latents)
optimize_batch_for_gh200({"latents": latents})
report = hints.current().report()["hints"]
assert "cache_prefetch" not in report and "prefetch" not in report and report["prefer_cpu"] == {"applied": 4}, report
ordinary = torch.randn(100_000)
assert hints.prefetch_to_device(ordinary) == hints.prefer_gpu_residency(ordinary) == "unsupported"
assert hints.prefetch_to_device(latents[0]) == "applied", "what a caller asks for is done where it can be"
assert free() < whole
""",
        mode="cdmm",
    )
    assert {call["type"] for call in machine.calls("cuMemAdvise_v2") if call["advice"] == "3"} == {"2"}


def test_managed_caches_obey_the_ratio_and_end_in_order(machine: Machine) -> None:
    machine.run(
        ON_THE_DRIVER
        + """
begin_memory_run(unified(oversubscription_ratio=2.0))
vae, text = (tiered(DirectoryBackend(kind), kind) for kind in ("vae", "text"))
for n in range(8):
    assert load(vae, n, 1 << 16).eq(n).all() and load(text, 100 + n, 1 << 16).eq(100 + n).all()
report = tensor_caches().report()["caches"]
assert report["managed"] and report["limit_bytes"] == report["packed_bytes"] == 2 << 20, report
assert report["counts"] == {"admitted": 8, "refused_full": 8}
end()
end()
""",
        hbm=1 << 20,
    )
    assert len(machine.calls("cuMemFree_v2")) == len(machine.calls("cuMemAllocManaged")) == 2
    assert [call["type"] for call in machine.calls("cuMemAdvise_v2") if call["advice"] == "3"] == ["2", "2"]


ENTRIES = [
    {"id": "photos", "type": "local"},
    {"id": "own", "type": "local", "cache_dir_vae": "kept/here"},
    {"id": "words", "type": "local", "dataset_type": "text_embeds"},
    {"id": "far", "type": "aws"},
    {"id": "embeds", "dataset_type": "image_embeds"},
]


def test_cache_dir_is_the_parent_where_none_is_set(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    begin_memory_run(unified(cache_dir="cache/gh200"))
    given = cache_dirs.directories_for_run(ENTRIES, Factory())
    assert [(entry.get("cache_dir_vae"), entry.get("cache_dir")) for entry in given] == [
        ("cache/gh200/vae/sdxl/photos", None),
        ("kept/here", None),
        (None, "cache/gh200/text/sdxl/words"),
        (None, None),
        (None, None),
    ]
    assert "own keeps its own cache directory" in caplog.text and "far keeps" in caplog.text
    assert "cache_dir_vae" not in ENTRIES[0]
    StateHooks.set_raw_config({"cache_dir_text": "words"})
    assert "cache_dir" not in cache_dirs.directories_for_run(ENTRIES, Factory())[2]
    StateHooks.set_raw_config(None)
    begin_memory_run(CacheOptions(cache_dir="cache/gh200"))
    assert cache_dirs.directories_for_run(ENTRIES, Factory()) is ENTRIES


MADE = [
    {"id": "text-embeds", "type": "local", "dataset_type": "text_embeds", "cache_dir": "out/cache/text/sdxl"},
    {"id": "i2v", "type": "local", "dataset_type": "conditioning_image_embeds", "cache_dir": "cache/embeds/i2v"},
    {"id": "photos_audio", "type": "local", "dataset_type": "audio", "cache_dir_vae": "cache/gh200/vae/sdxl/audio/x"},
]


class Factory:
    """Upstream's adds datasets of its own before it uses any."""

    def __init__(self) -> None:
        self.args = SimpleNamespace(model_family="sdxl")

    def _ensure_text_embed_backends_present(self, entries: list[Any]) -> list[Any]:
        return entries + copy.deepcopy(MADE)


def test_datasets_upstream_makes_by_itself_obey_cache_dir(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    for options in ({"cache_dir": "cache/gh200"}, {"cache_dir": str(tmp_path), "persistent": False}):
        begin_memory_run(unified(**options))
        factory = Factory()
        entries = cache_dirs.directories_for_run(copy.deepcopy(ENTRIES), factory)
        entries[0]["cache_dir_conditioning_image_embeds"] = "cache/embeds/i2v"
        found = factory._ensure_text_embed_backends_present(entries)
        parent = Path("cache/gh200") if len(options) == 1 else next(tmp_path.iterdir())
        assert found[1]["cache_dir_vae"] == "kept/here" and "cache_dir_vae" not in found[3]
        assert found[5]["cache_dir"] == str(parent / "text/sdxl/text-embeds")
        assert found[6]["cache_dir"] == found[0]["cache_dir_conditioning_image_embeds"]
        assert found[6]["cache_dir"] == str(parent / "image_embed/sdxl/i2v")
        assert "text-embeds, made by upstream" in caplog.text
        if len(options) == 1:
            assert found[7] == MADE[2], "it is below cache_dir already"
    begin_memory_run(unified())
    untouched = Factory()
    for _ in range(2):
        assert cache_dirs.directories_for_run(ENTRIES, untouched) is ENTRIES
        assert list(vars(untouched)) == ["args"]
        end()


def test_run_private_directory_is_said_and_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    begin_memory_run(unified(cache_dir=str(tmp_path), persistent=False))
    photos = cache_dirs.directories_for_run(ENTRIES, Factory())[0]
    directory = Path(photos["cache_dir_vae"])
    directory.mkdir(parents=True)
    torch.save(torch.ones(2), directory / "x.pt")
    (private,) = tmp_path.iterdir()
    assert directory.is_relative_to(private) and str(private) in caplog.text and "its files stay" in caplog.text
    end()
    assert not list(tmp_path.iterdir())


def test_run_private_directory_of_a_killed_run_is_removed_by_the_next(tmp_path: Path) -> None:
    code = (
        "import os, sys; from gh200_lab.memory_run import begin_memory_run;"
        "from simpletuner.gh200.backends.tensors.directories import PrivateDirectory;"
        "from simpletuner.gh200.config.cache_options import CacheOptions;"
        "begin_memory_run(CacheOptions(cache_dir=sys.argv[1])).part(PrivateDirectory); os.kill(os.getpid(), 9)"
    )
    root = ROOT
    subprocess.run([sys.executable, "-c", code, tmp_path], env=os.environ | {"PYTHONPATH": str(root)}, check=False)
    (left,) = tmp_path.iterdir()
    run = begin_memory_run(unified(cache_dir=str(tmp_path), persistent=False))
    mine = run.part(cache_dirs.PrivateDirectory).path
    assert not left.exists() and mine.exists()
