"""Transfer paths of a batch to the second of two GPUs: bit-identical, measured each, and how one is chosen."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from gh200_lab.checkout import see_this_checkout

see_this_checkout()

from gh200_lab.memory_run import begin_memory_run, store, tensor_caches  # noqa: E402
from simpletuner.gh200.backends.tensors import hooks  # noqa: E402
from simpletuner.gh200.backends.tensors.placement import Placement  # noqa: E402
from simpletuner.gh200.config.cache_options import CacheOptions  # noqa: E402
from simpletuner.gh200.config.sources import read_settings  # noqa: E402
from simpletuner.gh200.memory.batch import optimize_batch_for_gh200  # noqa: E402
from simpletuner.gh200.memory.batch_copy import OneCopy, PinningFailed  # noqa: E402
from simpletuner.gh200.memory.driver import CudaError, Driver, load_driver  # noqa: E402
from simpletuner.gh200.memory.transfer_paths import TRANSFER_PATHS, Timed, Timing, TransferPath, time_transfer_paths  # noqa: E402
from simpletuner.gh200.runtime import Run, end  # noqa: E402
from tests.cuda_sim.processes import read_log  # noqa: E402
from tests.support.fake_cache_backend import DirectoryBackend, tiered  # noqa: E402

DEVICE = 1
MB = 1 << 20
LATENT = (4, 128, 128)
MODE = os.environ["CUDA_SIM_MODE"]


def begun(placement: str, optimizations: dict[str, Any] | None = None, **seconds: float) -> Run:
    """A run on the device; where timings are given, those are what a measurement finds."""
    block = {"vae_cache_type": "unified_memory", "placement": placement}
    settings = read_settings({"cache_config": block, "gh200_optimizations": optimizations or {}}, {})
    run = begin_memory_run(CacheOptions.from_settings(settings), settings)
    run.hints.device = DEVICE
    timings: dict[TransferPath, Timing] = {
        path: Timing(seconds[path], seconds[path], seconds[path]) for path in TRANSFER_PATHS if path in seconds
    }

    def injected(device: int, size: int, entries: int) -> Timed:
        assert device == DEVICE and size >= 3 * MB and entries == 6
        return Timed(size, entries, 1, timings, {"stock": "not measured here"})

    if seconds:
        run.part(Placement).measure = injected
    hooks.decide_placement(run, torch.device("cuda", DEVICE), 3 * MB, 6)
    return run


def paths(count: int) -> list[str]:
    directory = Path(tempfile.mkdtemp())
    for number in range(count):
        latent = torch.linspace(-1, 1 + number, LATENT[0] * LATENT[1] * LATENT[2]).view(LATENT).to(torch.bfloat16)
        torch.save({"latents": latent}, directory / f"{number}.pt")
    return [str(directory / f"{number}.pt") for number in range(count)]


def collated(backend: Any, files: list[str]) -> torch.Tensor:
    """As upstream's collate does it: placed one by one, checked, moved, stacked."""
    loaded = [backend.torch_load(path) for path in files]
    with torch.cuda.device(DEVICE):
        placed = [hooks.placed_latent(latent) or latent for latent in loaded]
        latents = hooks.moved_together([latent["latents"] for latent in placed])
        assert all(hooks.known_finite(latent) for latent in latents)
        return torch.stack([latent.to(f"cuda:{DEVICE}") for latent in latents])


def logged_copies() -> int:
    return sum(name == "cudaMemcpyAsync" for name, _ in read_log(Path(os.environ["CUDA_SIM_LOG"])))


def _driver() -> Driver:
    driver = load_driver()
    assert isinstance(driver, Driver)
    return driver


def _logged() -> int:
    return len(read_log(Path(os.environ["CUDA_SIM_LOG"])))


def nothing_pinned(empty: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def rejected(*sizes: Any, **options: Any) -> torch.Tensor:
        if options.get("pin_memory"):
            raise RuntimeError("CUDA error: out of memory")
        return empty(*sizes, **options)

    return rejected


def check_one_copy_is_bit_identical_with_its_strides() -> None:
    wide = torch.arange(4096, dtype=torch.float32).view(64, 64)
    sent = [wide, wide.t(), wide[3:9, ::2], wide.to(torch.bfloat16), torch.tensor(7, dtype=torch.int64), wide > 5]
    mover = OneCopy(DEVICE)
    for turn in range(3):
        there = mover.move(sent)
        for one, other in zip(sent, there, strict=True):
            assert other.device.index == DEVICE and other.stride() == one.stride() and other.dtype == one.dtype
            assert torch.equal(other.cpu(), one), turn
    assert mover.batches == 3
    mover.close()


def check_one_copy_is_one_copy_on_a_stream_of_its_own_ordered_by_events() -> None:
    mover = OneCopy(DEVICE)
    entries = [torch.full((1000, 16), float(number)) for number in range(8)]
    mover.move(entries)
    torch.cuda.synchronize(DEVICE)
    before = _logged()
    reader = torch.cuda.Stream(DEVICE)
    with torch.cuda.stream(reader):
        mover.move(entries)
    watched = (
        "cudaEventSynchronize",
        "cudaHostAlloc",
        "cudaMemcpyAsync",
        "cudaEventRecordWithFlags",
        "cudaStreamWaitEvent",
    )
    calls = [(name, call) for name, call in read_log(Path(os.environ["CUDA_SIM_LOG"]))[before:] if name in watched]
    assert [name for name, _ in calls][:4] == [
        "cudaEventSynchronize", "cudaMemcpyAsync", "cudaEventRecordWithFlags", "cudaStreamWaitEvent",
    ], calls  # fmt: skip
    mover.close()


def check_every_way_is_timed_and_nothing_is_left() -> None:
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info(DEVICE)[0]
    reserved = torch.cuda.memory_reserved(DEVICE)
    state = torch.get_rng_state(), torch.cuda.get_rng_state(DEVICE)
    timed = time_transfer_paths(DEVICE, 2 * MB, entries=4, seconds=0.1)
    assert list(timed.timings) == list(TRANSFER_PATHS) and timed.failed == {} and timed.batch_bytes == 2 * MB, timed
    assert all(0 < each.lowest <= each.median <= each.highest for each in timed.timings.values()), timed
    assert torch.cuda.mem_get_info(DEVICE)[0] == free and torch.cuda.memory_reserved(DEVICE) == reserved
    assert torch.equal(state[0], torch.get_rng_state()) and torch.equal(state[1], torch.cuda.get_rng_state(DEVICE))


def check_a_batch_larger_than_memory_is_measured_smaller() -> None:
    free = torch.cuda.mem_get_info(DEVICE)[0]
    timed = time_transfer_paths(DEVICE, 1 << 40, entries=3, paths=("pinned",), seconds=0)
    assert 0 < timed.batch_bytes < free // 4 and timed.rounds == 3, timed


def check_a_way_that_fails_has_its_reason_and_the_others_their_measurements() -> None:
    driver = _driver()
    allocate = driver.allocate_managed

    def rejected(size: int, device: int) -> int:
        raise CudaError("cuMemAllocManaged", "CUDA_ERROR_OUT_OF_MEMORY")

    driver.allocate_managed = rejected  # type: ignore[method-assign]
    try:
        timed = time_transfer_paths(DEVICE, MB, seconds=0)
    finally:
        driver.allocate_managed = allocate  # type: ignore[method-assign]
    assert set(timed.timings) == {"pinned", "hbm", "stock"} and "OUT_OF_MEMORY" in timed.failed["managed"], timed


def check_pinned_memory_that_is_rejected_is_said() -> None:
    mover = OneCopy(DEVICE)
    with mock.patch.object(torch, "empty", nothing_pinned(torch.empty)):
        try:
            mover.move([torch.ones(8)])
            raise AssertionError("there is no such memory")
        except PinningFailed as error:
            assert "out of memory" in str(error)
    assert mover.move([torch.ones(8)])[0].sum().item() == 8
    mover.close()


def check_every_placement_is_bit_identical_in_every_epoch() -> None:
    files = paths(12)
    plain = [torch.load(path)["latents"] for path in files]
    for placement in ("managed", "pinned", "hbm", "auto"):
        run = begun(placement)
        backend = tiered(DirectoryBackend())
        for step, epoch in enumerate((0, 1, 2, 3)):
            hooks.micro_batch_begins(step)
            for order in (files[epoch:] + files[:epoch],):
                for first in range(0, 12, 6):
                    batch = collated(backend, order[first : first + 6])
                    optimize_batch_for_gh200({"latents": batch})
                    wanted = torch.stack([plain[files.index(path)] for path in order[first : first + 6]])
                    assert torch.equal(batch.cpu(), wanted), (placement, epoch)
        measured = run.snapshot()["measured"]
        assert measured["Cache placement"]["asked"] == placement
        assert measured["Unified memory"]["caches"]["managed"] == (measured["Cache placement"]["way"] == "managed"), (
            measured
        )
        end()


def check_auto_follows_the_timings_it_is_given() -> None:
    managed = "pinned" if MODE == "cdmm" else "managed"
    cases = [
        ({"managed": 1.0, "pinned": 2.0, "hbm": 3.0}, managed, False),
        ({"managed": 2.0, "pinned": 1.0, "hbm": 3.0}, "pinned", False),
        ({"managed": 2.0, "pinned": 3.0, "hbm": 1.0}, managed, True),
        ({"managed": 1.0, "pinned": 1.02, "hbm": 0.99}, "pinned", False),
        ({"managed": 3.0, "pinned": 2.0, "hbm": 1.0, "stock": 0.1}, "pinned", True),
        ({"managed": 1.0, "hbm": 3.0}, managed, MODE == "cdmm"),
    ]
    for seconds, path, resident in cases:
        run = begun("auto", **seconds)
        placement = run.part(Placement)
        assert (placement.path, placement.resident) == (path, resident), (seconds, placement.report())
        shown = run.snapshot()["measured"]["Cache placement"]["milliseconds"]
        assert shown == {name: value * 1e3 for name, value in seconds.items()}
        end()


def check_each_start_measures_once_and_shows_it() -> None:
    asked = []
    for _ in range(2):
        block = {"vae_cache_type": "unified_memory"}
        settings = read_settings({"cache_config": block}, {})
        run = begin_memory_run(CacheOptions.from_settings(settings), settings)
        run.hints.device = DEVICE
        placement = run.part(Placement)

        def measure(device: int, size: int, entries: int) -> Timed:
            asked.append(size)
            return time_transfer_paths(device, size, entries=entries, seconds=0)

        placement.measure = measure
        hooks.decide_placement(run, torch.device("cuda", DEVICE), 5 * MB, 6)
        measured = run.snapshot()["measured"]["Cache placement"]
        assert set(measured["milliseconds"]) == set(TRANSFER_PATHS) and measured["failed"] == {}, measured
        end()
    assert asked == [5 * MB, 5 * MB], asked


def check_no_latents_no_measurement() -> None:
    settings = read_settings({"cache_config": {"text_cache_type": "unified_memory"}}, {})
    run = begin_memory_run(CacheOptions.from_settings(settings), settings)
    run.hints.device = DEVICE
    run.part(Placement).measure = lambda *_: (_ for _ in ()).throw(AssertionError("measured"))
    hooks.decide_placement(run, torch.device("cuda", DEVICE), 5 * MB, 6)
    assert run.part(Placement).path == "pinned"
    end()


def check_a_gpu_that_cannot_be_timed_leaves_plain_ram_and_says_why() -> None:
    run = begun("auto", pinned=1.0)
    end()
    settings = read_settings({"cache_config": {"vae_cache_type": "unified_memory"}}, {})
    run = begin_memory_run(CacheOptions.from_settings(settings), settings)
    run.hints.device = DEVICE

    def gone(*_: Any) -> Timed:
        raise CudaError("cuMemGetInfo", "CUDA_ERROR_DEVICE_UNAVAILABLE")

    run.part(Placement).measure = gone
    hooks.decide_placement(run, torch.device("cuda", DEVICE), 77 * MB, 6)
    assert run.part(Placement).path == "pinned" and "DEVICE_UNAVAILABLE" in run.part(Placement).why
    end()


def check_pinned_is_one_copy_a_batch_whatever_is_in_it() -> None:
    begun("pinned")
    backend = tiered(DirectoryBackend())
    files = paths(6)
    collated(backend, files)
    before = logged_copies()
    for count in (6, 2, 1, 6):
        collated(backend, files[:count])
    assert logged_copies() - before == 4
    report = tensor_caches().report()["caches"]
    assert report["batches_in_one_copy"] == 5 and not report["managed"] and "bytes_resident" not in report, report
    end()


def check_a_batch_with_latents_that_are_not_cached_is_complete() -> None:
    begun("pinned")
    backend = tiered(DirectoryBackend())
    kept = backend.torch_load(paths(1)[0])["latents"]
    other, bad = torch.ones(LATENT, dtype=torch.bfloat16), torch.full((4,), float("nan"))
    directory = Path(tempfile.mkdtemp())
    torch.save(bad, directory / "bad.pt")
    wrong = hooks.placed_latent(backend.torch_load(str(directory / "bad.pt")))
    moved = hooks.moved_together([other, hooks.placed_latent(kept), None, wrong, kept[:2]])
    assert moved[0] is other and moved[1].is_cuda and moved[2] is None and moved[3] is wrong and not moved[4].is_cuda
    assert not hooks.known_finite(moved[3]) and torch.equal(moved[1].cpu(), kept)
    end()


def check_hbm_waits_for_the_first_steps_and_then_nothing_is_copied() -> None:
    run = begun("hbm")
    backend = tiered(DirectoryBackend())
    files = paths(6)
    for step in range(2):
        hooks.micro_batch_begins(step)
        collated(backend, files)
        assert run.hints.share.given == 0
    hooks.micro_batch_begins(2)
    collated(backend, files)
    size = torch.load(files[0])["latents"].nbytes
    assert run.hints.share.given == 6 * size == tensor_caches().report()["caches"]["bytes_resident"]
    before = logged_copies()
    hooks.micro_batch_begins(3)
    batch = collated(backend, files)
    assert logged_copies() == before and torch.equal(batch[2].cpu(), torch.load(files[2])["latents"])
    store().drop(files[0])
    assert run.hints.share.given == 5 * size
    end()


def check_hbm_ends_where_the_share_ends() -> None:
    run = begun("hbm")
    backend = tiered(DirectoryBackend())
    files = paths(6)
    size = torch.load(files[0])["latents"].nbytes
    run.hints.share.measured(free=int(3.5 * size) + 100 * size, total=1000 * size)
    wanted = collated(backend, files)
    assert run.hints.share.given == 3 * size
    assert torch.equal(collated(backend, files), wanted)
    end()


def check_hbm_gives_way_to_training() -> None:
    run = begun("hbm")
    backend = tiered(DirectoryBackend())
    files = paths(6)
    run.hints.share.measured(*torch.cuda.mem_get_info(DEVICE))
    wanted = collated(backend, files)
    assert run.hints.share.given > 0
    torch.cuda.empty_cache()
    ballast = torch.empty(torch.cuda.mem_get_info(DEVICE)[0] - 8 * MB, dtype=torch.uint8, device=f"cuda:{DEVICE}")
    hooks.micro_batch_begins(9)
    assert run.hints.share.given == 0 and all(slot.resident is None for slot in store().slots())
    del ballast
    torch.cuda.empty_cache()
    assert torch.equal(collated(backend, files), wanted) and run.hints.share.given == 0
    end()


def check_a_latent_somebody_writes_to_in_hbm_is_read_again() -> None:
    run = begun("hbm")
    files = DirectoryBackend()
    backend = tiered(files)
    (path,) = paths(1)
    run.hints.share.measured(64 * MB, 128 * MB)
    collated(backend, [path])
    with torch.cuda.device(DEVICE):
        (latent,) = hooks.moved_together([hooks.placed_latent(backend.torch_load(path))["latents"]])
        latent.zero_()
    assert torch.equal(collated(backend, [path])[0].cpu(), torch.load(path)["latents"]) and files.loads[path] == 2
    end()


def check_rejected_pinned_memory_leaves_upstreams_way() -> None:
    begun("pinned")
    backend = tiered(DirectoryBackend())
    files = paths(2)
    with mock.patch.object(torch, "empty", nothing_pinned(torch.empty)):
        first = collated(backend, files)
    assert torch.equal(first, collated(backend, files)) and not tensor_caches().batches.together
    assert hooks.placed_latent(backend.torch_load(files[0]))["latents"].is_pinned()
    end()


def check_hbm_with_everything_in_managed_memory_is_said_not_done() -> None:
    run = begun("hbm", {"managed_memory": "all"})
    placement = run.part(Placement)
    assert placement.path == "pinned" and not placement.resident and 'managed_memory "all"' in placement.why
    end()
    run = begun("auto", {"managed_memory": "all"}, managed=3.0, pinned=2.0, hbm=1.0)
    assert (run.part(Placement).path, run.part(Placement).resident) == ("pinned", False)
    end()
