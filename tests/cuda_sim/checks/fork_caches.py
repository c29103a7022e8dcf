"""The fork's caches and hints on the second of two devices, as a rank there uses them: from threads, and from a child."""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from accelerate.utils.environment import set_numa_affinity

from gh200_lab.checkout import see_this_checkout

see_this_checkout()

from gh200_lab.memory_run import begin_memory_run, store, tensor_caches  # noqa: E402
from simpletuner.gh200.backends.tensors import hooks  # noqa: E402
from simpletuner.gh200.config.cache_options import CacheOptions  # noqa: E402
from simpletuner.gh200.diagnostic import allocation, bandwidth  # noqa: E402
from simpletuner.gh200.diagnostic.device import Device  # noqa: E402
from simpletuner.gh200.diagnostic.gpu import read_gpus  # noqa: E402
from simpletuner.gh200.diagnostic.machine import Machine  # noqa: E402
from simpletuner.gh200.memory import affinity  # noqa: E402
from simpletuner.gh200.memory.batch import optimize_batch_for_gh200  # noqa: E402
from simpletuner.gh200.memory.driver import Driver, load_driver  # noqa: E402
from simpletuner.gh200.memory.family import Family  # noqa: E402
from simpletuner.gh200.runtime import Run, end  # noqa: E402
from tests.cuda_sim.processes import read_log  # noqa: E402
from tests.support.fake_cache_backend import DirectoryBackend, tiered  # noqa: E402

DEVICE = 1  # CUDA's; CUDA_VISIBLE_DEVICES names the two by UUID, the other way round than NVML
LATENT = (64, 64, 16)


def on_a_rank(**options: Any) -> Run:
    """A run whose process has the second device, while torch's own default stays the first."""
    run = begin_memory_run(CacheOptions(kinds=frozenset({"vae"}), hints=True, placement="managed", **options))
    run.hints.device = DEVICE
    return run


def latents(count: int) -> list[str]:
    directory = Path(tempfile.mkdtemp())
    for number in range(count):
        torch.save(torch.full(LATENT, float(number), dtype=torch.bfloat16), directory / f"{number}.pt")
    return [str(directory / f"{number}.pt") for number in range(count)]


def check_the_arena_is_on_the_device_of_the_run_also_from_a_pool() -> None:
    on_a_rank()
    backend = tiered(DirectoryBackend())
    with ThreadPoolExecutor(4) as pool:
        placed = list(pool.map(lambda path: hooks.placed_latent(backend.torch_load(path)), latents(8)))
    assert {str(latent.device) for latent in placed} == {f"cuda:{DEVICE}"}
    assert [latent.float().mean().item() for latent in placed] == list(range(8))
    assert all(hooks.known_finite(latent) for latent in placed)
    del placed
    end()


def check_a_batch_gets_hints_only_where_memory_is_managed() -> None:
    run = on_a_rank()
    backend = tiered(DirectoryBackend())
    managed = backend.torch_load(latents(1)[0])
    ordinary = {"prompt_embeds": torch.ones(1 << 16), "on_gpu": torch.ones(1 << 16, device=f"cuda:{DEVICE}")}
    optimize_batch_for_gh200(ordinary | {"tiny": torch.ones(2)})
    assert run.hints.report()["hints"]["batch"] == {"not_managed": 3}, run.hints.report()
    optimize_batch_for_gh200({"latents": managed})
    assert run.hints.report()["hints"]["batch"] == {"not_managed": 3, "beyond_share": 1}, "HBM is training's, so far"
    for step in range(3):
        hooks.micro_batch_begins(step)
    for _ in range(2):
        optimize_batch_for_gh200({"latents": managed})
    hints = run.hints.report()["hints"]
    assert hints["batch"]["applied"] == 2 and hints["prefetch"] == {"applied": 1, "resident": 1}, hints
    end()


def check_a_rejected_block_is_not_asked_for_again_until_something_is_released() -> None:
    on_a_rank(memory_limit=3 << 20)
    asked: list[int] = []
    backend = tiered(DirectoryBackend())
    paths = latents(6)
    first = backend.torch_load(paths[0])
    arena = store().arena("device")
    allocate = arena._allocated

    def counted(least: int) -> Any:
        asked.append(least)
        return allocate(1 << 40)

    arena._allocated = counted  # type: ignore[method-assign]
    arena._blocks[-1].cursor = arena._blocks[-1].size
    for path in paths[1:5]:
        assert backend.torch_load(path).shape == LATENT
    assert len(asked) == 1, asked
    del first
    store().drop(paths[0])
    backend.torch_load(paths[5])
    assert len(asked) <= 2
    end()


def check_a_forked_child_reads_from_disk_and_dies_of_nothing() -> None:
    on_a_rank()
    files = DirectoryBackend()
    backend = tiered(files)
    path = latents(1)[0]
    backend.torch_load(path)
    assert files.loads[path] == 1
    child = os.fork()
    if not child:
        read = backend.torch_load(path)
        # One element: a whole tensor would want OpenMP's threads, which no fork survives.
        ended = files.loads[path] == 2 and read[0, 0, 0].item() == 0 and hooks.placed_latent(read) is None
        end()
        os._exit(0 if ended else 1)
    assert os.waitpid(child, 0)[1] == 0
    backend.torch_load(path)
    assert files.loads[path] == 1 and tensor_caches().store is not None
    end()


def check_a_collated_batch_moves_in_one_call_ahead_of_the_kernel_that_reads_it() -> None:
    on_a_rank()
    backend = tiered(DirectoryBackend())
    paths = latents(6)
    cached = [backend.torch_load(path) for path in paths]
    for step in range(3):
        hooks.micro_batch_begins(step)
    log = Path(os.environ["CUDA_SIM_LOG"])
    before = len(read_log(log))
    with torch.cuda.stream(torch.cuda.Stream(DEVICE)) as _, torch.cuda.device(DEVICE):
        placed = [hooks.placed_latent(latent) for latent in cached[::2]]
        placed = hooks.moved_together(placed)
        assert all(hooks.known_finite(latent) for latent in placed)
        stream = torch.cuda.current_stream(DEVICE).cuda_stream
        total = torch.stack(placed).float().sum().item()
    assert total == 6 * 64 * 64 * 16
    wanted = ("Prefetch", "cuEventRecord", "cuStreamWaitEvent")
    calls = [(name, call) for name, call in read_log(log)[before:] if any(word in name for word in wanted)]
    assert [name for name, _ in calls] == ["cuMemPrefetchBatchAsync", "cuEventRecord", "cuStreamWaitEvent"], calls
    assert int(calls[-1][1]["stream"]) == stream, "the stream of the kernels that read"
    del cached, placed
    end()


def check_cpus_beside_the_gpu_are_found_by_uuid() -> None:
    mine = os.sched_getaffinity(0)
    if not {0, 1} <= mine:
        return  # the simulated device's NVML knows one CPU a device
    try:
        set_numa_affinity(DEVICE)
        assert os.sched_getaffinity(0) == {1}, "Accelerate takes CUDA's number for NVML's"
        affinity.bind_beside(DEVICE, {"ACCELERATE_CPU_AFFINITY": "no"})
        assert os.sched_getaffinity(0) == {1}, "nobody asked"
        affinity.bind_beside(DEVICE, {"ACCELERATE_CPU_AFFINITY": "1"})
        assert os.sched_getaffinity(0) == {0}
    finally:
        for task in affinity.TASKS.iterdir():
            os.sched_setaffinity(int(task.name), mine)


def check_the_diagnostic_matches_cuda_and_nvml_by_uuid() -> None:
    found = read_gpus(Machine())
    assert [gpu.index for gpu in found.devices] == [0, 1] and found.source == "NVML"
    # The simulated device's nodes follow NVML's numbers, and so do its names.
    for gpu in found.devices:
        assert gpu.attributes["numa_id"] == gpu.numa_node == 1 + gpu.index, gpu
        assert gpu.name == f"Simulated {gpu.index}" and gpu.uuid is not None


def check_the_diagnostics_tests_of_memory_have_a_context() -> None:
    driver = load_driver()
    assert isinstance(driver, Driver)
    device = Device(driver, DEVICE)
    tried = allocation.try_allocation(device, 1.25, lambda: 1 << 30, lambda *_: None)
    measured = bandwidth.measure(device, lambda: 1 << 30, Family.COHERENT, lambda *_: None)
    device.close()
    assert tried.status == "pass" and len(measured.rates) == 6, (tried, measured)
