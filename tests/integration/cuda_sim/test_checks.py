"""The simulated GPU from inside: many checks in a few processes, each reported as a test of its own."""

from __future__ import annotations

import ast
import json
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.cuda_sim.needed import cuda_sim_or_skip
from tests.cuda_sim.processes import HERE, ROOT, Ran, run

CHECKS = HERE / "checks"
SMALL = ["--devices", "2", "--hbm-mb", "4", "--managed-mb", "64"]
BY_UUID = {"CUDA_VISIBLE_DEVICES": "GPU-72,GPU-57"}  # the second of them, then the first
RUNS: dict[str, tuple[str, list[str], dict[str, str]]] = {
    "numa": ("modes", [*SMALL, "--mode", "numa"], {"CUDA_VISIBLE_DEVICES": "1"}),
    "cdmm": ("modes", [*SMALL, "--mode", "cdmm"], {"CUDA_VISIBLE_DEVICES": "1"}),
    "pcie": ("modes", [*SMALL, "--mode", "pcie"], {"CUDA_VISIBLE_DEVICES": "1"}),
    "misuse": ("misuse", SMALL, {}),
    "fork": ("fork_caches", ["--devices", "2", "--hbm-mb", "256", "--managed-mb", "512"], BY_UUID),
    "beyond_hbm": ("beyond_hbm", ["--devices", "2", "--hbm-mb", "256", "--managed-mb", "1024"], {}),
    "cache_placement": ("cache_placement", ["--devices", "2", "--hbm-mb", "256", "--managed-mb", "512"], {}),
    "telemetry": ("telemetry", ["--devices", "2", "--hbm-mb", "256", "--managed-mb", "1024"], {}),
    "cache_placement_cdmm": ("cache_placement", ["--devices", "2", "--hbm-mb", "256", "--mode", "cdmm"], {}),
    "traffic": ("traffic", ["--hbm-mb", "16", "--managed-mb", "64"], {}),
    "torch": ("torch_device", ["--devices", "2", "--hbm-mb", "256", "--managed-mb", "512"], {}),
}


@pytest.fixture(autouse=True)
def _needs_a_compiler() -> None:
    cuda_sim_or_skip()


@cache
def ran(name: str, directory: Path) -> tuple[Ran, dict[str, str]]:
    file, options, environment = RUNS[name]
    own = {"PYTHONPATH": f"{CHECKS}:{ROOT}", "CUDA_SIM_LOG": str(directory / f"{name}.log")}
    command = [sys.executable, str(CHECKS / "runner.py"), str(CHECKS / f"{file}.py")]
    done = run(options, command, directory / f"{name}.jsonl", environment=own | environment)
    lines = [line for line in done.output.splitlines() if line.startswith("ENDED ")]
    assert done.code == 0 and lines, (done.code, done.output[-2000:], done.errors[-2000:])
    return done, json.loads(lines[0].removeprefix("ENDED "))


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cuda_sim")


def names(file: str) -> list[str]:
    tree = ast.parse((CHECKS / f"{file}.py").read_text())
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")]


@pytest.mark.parametrize(
    ("name", "check"), [(name, check) for name, (file, *_) in RUNS.items() for check in names(file)]
)
def test_cuda_sim(name: str, check: str, shared: Path) -> None:
    _, ended = ran(name, shared)
    assert ended[check] == "", ended[check]


@pytest.mark.parametrize("mode", ["numa", "cdmm", "pcie"])
def test_well_behaved_code_violates_nothing(mode: str, shared: Path) -> None:
    done, _ = ran(mode, shared)
    (report,) = [report for report in done.reports if not report["forked_child"]]
    assert report["violations"] == [] and set(report["left"]["driver"].values()) == {0}
    assert (report["cpu_faults"] > 0) == (mode != "numa") and report["evicted_pages"] == 16
    assert (report["system_bytes_moved_to_hbm"] > 0) == (mode == "numa")
    assert (report["system_prefetches_without_effect"] > 0) == (mode == "cdmm")


@pytest.mark.parametrize(
    "sentence",
    [
        "cuMemAlloc_v2: the calling thread has no current context",
        "cuMemAdvise_v2: the calling thread has no current context",
        "cuEventRecord: the calling thread has no current context",
        "cuEventQuery: the calling thread has no current context",
        "cuCtxPushCurrent_v2: the context is not alive: released, or never retained",
        "cuDevicePrimaryCtxRelease_v2: a primary context is released more often than it was retained",
        "cuStreamSynchronize: the handle is no stream",
        "cuStreamSynchronize: the stream has been destroyed",
        "cuEventQuery: the event has been destroyed",
        "cuEventRecord: event and stream belong to different devices",
        "cuMemPrefetchAsync_v2: the memory is the GPU's own, neither managed nor the system's",
        "cuMemAdvise_v2: the memory is pinned, neither managed nor the system's",
        "cuMemPrefetchAsync_v2: the range ends outside the managed allocation, or inside one of its pages",
        "cuMemPrefetchAsync_v2: the memory has been freed",
        "cuMemPrefetchAsync_v2: the range of system memory is not mapped to its end",
        "cuMemFree_v2: pinned memory is freed as the GPU's own memory",
        "cuMemFreeHost: the GPU's own memory is freed as pinned memory",
        "cuMemFree_v2: a pointer into the middle of an allocation is freed",
        "cuMemFree_v2: managed memory is freed twice",
        "cuMemcpyDtoHAsync_v2: the source has been freed",
        "cuMemcpyHtoDAsync_v2: the source is not mapped to its end",
        "cuMemcpyHtoDAsync_v2: the direction that is claimed is not that of the two pointers",
        "cuMemCreate: unsupported call cuMemCreate",
        "cudaGraphLaunch: unsupported call cudaGraphLaunch",
    ],
)
def test_names_the_violation(sentence: str, shared: Path) -> None:
    assert sentence in ran("misuse", shared)[0].violations()


def test_report_of_a_torch_process(shared: Path) -> None:
    done, _ = ran("torch", shared)
    (report,) = done.reports
    freed = "kernel: a kernel reads freed managed memory"
    unhandled = [sentence for sentence in done.violations() if sentence != freed]
    assert freed in done.violations() and len(unhandled) == 1 and "fused_dropout_kernel" in unhandled[0]
    assert report["unhandled_launches"] == 1 and report["evicted_pages"] > 0 and report["synchronisations"] > 0
    assert report["left"]["driver"] == dict.fromkeys(report["left"]["driver"], 0)
    copies = report["copies"]
    assert all(copies[way]["bytes"] > 0 for way in ("host_to_device", "device_to_host", "device_to_device"))
    assert copies["device_to_other_device"]["count"] == 2 and copies["host_to_host"]["count"] == 0
    assert 0 < report["device_bytes_peak"][0] <= 256 << 20


def test_the_forks_caches_violate_nothing_on_a_second_device(shared: Path) -> None:
    done = ran("fork", shared)[0]
    assert done.violations() == []
    (report,) = [report for report in done.reports if not report["forked_child"]]
    left = report["left"]["driver"]
    assert left == dict.fromkeys(left, 0), left


def test_managed_pools_violates_nothing(shared: Path) -> None:
    assert ran("beyond_hbm", shared)[0].violations() == []


TWO = ["--devices", "2", "--hbm-mb", "256", "--managed-mb", "1024"]
ITS_OWN = "max_split_size_mb:64,garbage_collection_threshold:0.8"


def beyond_hbm_program(name: str, shared: Path, settings: str = "") -> Ran:
    own = {"PYTHONPATH": f"{CHECKS}:{ROOT}", "PYTORCH_CUDA_ALLOC_CONF": settings}
    done = run(TWO, [sys.executable, str(CHECKS / f"{name}.py")], shared / f"{name}.jsonl", environment=own)
    assert done.code == 0, (done.code, done.output[-2000:], done.errors[-3000:])
    return done


@pytest.mark.parametrize("settings", ["", ITS_OWN], ids=["stock", "own_allocator_settings"])
def test_managed_pools_do_not_deadlock(settings: str, shared: Path) -> None:
    """Whoever has the GIL may want torch's allocator: what makes a block must not want the GIL."""
    done = beyond_hbm_program("pool_threads", shared, settings)
    assert "ENDED" in done.output and done.errors == "" and done.violations() == [], done.errors[-3000:]


def test_another_allocator_is_rejected(shared: Path) -> None:
    said = beyond_hbm_program("other_allocator", shared).output
    assert "pluggable is set" in said and "change_current_allocator" in said, said
