"""Each family on the simulated device: what it is, what is free, what each feature then does."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.cuda_sim.needed import cuda_sim_or_skip
from tests.cuda_sim.processes import HERE, ROOT, clean_environment

MIB = 1 << 20
PAGE_CACHE = 48 * MIB
FAMILIES = {
    "gh200": ("coherent with its own memory", "NUMA", [1]),
    "gb200": ("coherent with its own memory", "NUMA", [1, 2]),
    "gb10": ("one memory pool", "none", [None]),
    "h100": ("discrete", "none", [None]),
}
WITH_OWN_MEMORY = ["gh200", "gb200", "h100"]
# Prints what every feature makes of the machine. HBM has 64 MiB, of which in NUMA mode 48 are page cache.
PROBE = """
import json, sys
import torch
from gh200_lab.memory_run import begin_memory_run
from simpletuner.gh200.backends.tensors import hooks, store
from simpletuner.gh200.backends.tensors.arena import TensorArena
from simpletuner.gh200.backends.tensors.blocks import CacheBudget
from simpletuner.gh200.backends.tensors.placement import Placement
from simpletuner.gh200.config.cache_options import CacheOptions
from simpletuner.gh200.errors import GH200Error
from simpletuner.gh200.memory import hbm
from simpletuner.gh200.memory.driver import load_driver
from simpletuner.gh200.memory.family import platform
from simpletuner.gh200.offload.hooks import _driver_for

driver, device = load_driver(), torch.device("cuda", 0)
hbm.file_cache_of = lambda node: int(sys.argv[1])
platforms = [platform(number) for number in range(driver.device_count)]
found = {
    "family": platforms[0].family,
    "memory_mode": platforms[0].memory_mode,
    "hbm_nodes": [one.hbm_node for one in platforms],
    "cuda": driver.memory_info(0),
    "counted": hbm.free_and_total(0),
    "available": hbm.memory_limits()[0].bytes,
    "placements": {},
}
for placement in ("auto", "hbm"):
    run = begin_memory_run(CacheOptions(kinds=frozenset({"vae"}), hints=True, placement=placement))
    run.hints.settle_on(device)
    hooks.decide_placement(run, device, 1 << 20, 4)
    found["placements"][placement] = run.part(Placement).report()
found["policy"] = run.hints.policy()
found["beside_the_host"] = TensorArena(CacheBudget(None), "device")._free_on_gpu()
found["cache_limit"] = store._shared_limit(CacheOptions())
try:
    _driver_for(0)
    found["offload"] = None
except GH200Error as error:
    found["offload"] = [error.why, error.fix]
real = hbm.free_and_total
hbm.free_and_total = lambda device: (1 << 30, real(device)[1])
hbm.bound_one_pool(0)
found["out_of_memory"] = ""
if platforms[0].one_pool:
    try:
        torch.empty(1100 << 20, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError as error:
        found["out_of_memory"] = str(error)
print(json.dumps(found))
"""


@pytest.fixture(autouse=True)
def _needs_a_compiler() -> None:
    cuda_sim_or_skip()


def on(family: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [str(HERE / "run.sh"), "--family", family, "--hbm-mb", "64", *words]
    done = subprocess.run(command, env=clean_environment() | environment, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode in (0, 1), done.stderr[-3000:]
    return done


@cache
def probed(family: str) -> dict[str, Any]:
    done = on(family, sys.executable, "-c", PROBE, str(PAGE_CACHE), CUDA_SIM_PAGE_CACHE=str(PAGE_CACHE))
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_the_family_is_found_by_attributes(family: str) -> None:
    found = probed(family)
    assert (found["family"], found["memory_mode"], found["hbm_nodes"]) == FAMILIES[family]


@pytest.mark.parametrize("family", FAMILIES)
def test_page_cache_counts_as_free(family: str) -> None:
    found = probed(family)
    if family == "gb10":
        memory = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        assert found["cuda"][1] == found["counted"][1] == int(memory["MemTotal"].split()[0]) << 10
        assert abs(found["counted"][0] - found["available"]) < 1 << 30, "MemAvailable and the cgroup, less headroom"
    else:
        assert found["cuda"] == [64 * MIB - (PAGE_CACHE if family != "h100" else 0), 64 * MIB]
        assert found["counted"] == [64 * MIB, 64 * MIB]


def test_memory_of_one_pool_is_counted_once() -> None:
    found = probed("gb10")
    assert found["beside_the_host"] == 0
    assert 0 < found["cache_limit"] <= found["available"], "the oversubscription ratio means nothing there"


@pytest.mark.parametrize("family", WITH_OWN_MEMORY)
def test_memory_of_the_gpu_is_beside_that_of_the_host(family: str) -> None:
    found = probed(family)
    assert found["beside_the_host"] > 32 * MIB and found["cache_limit"] == 5 * 64 * MIB


def test_one_pool_ends_in_an_error_of_torch_before_memory_runs_out() -> None:
    assert "out of memory" in probed("gb10")["out_of_memory"]


@pytest.mark.parametrize("placement", ["auto", "hbm"])
def test_one_pool_copies_nothing_to_gpu_memory(placement: str) -> None:
    report = probed("gb10")["placements"][placement]
    assert (report["way"], report["hbm"], "milliseconds" in report) == ("pinned", False, False)
    assert "one memory pool" in report["reason"] and probed("gb10")["policy"] == "cpu_first"


@pytest.mark.parametrize("family", WITH_OWN_MEMORY)
def test_placement_is_measured_where_the_gpu_has_memory(family: str) -> None:
    placements = probed(family)["placements"]
    assert "milliseconds" in placements["auto"] and placements["hbm"]["hbm"] is True


@pytest.mark.parametrize("family", FAMILIES)
def test_offload_is_rejected_where_there_is_nothing_beyond(family: str) -> None:
    rejection = probed(family)["offload"]
    if family != "gb10":
        assert rejection is None
    else:
        assert "one memory pool" in rejection[0] and "gh200_optimizations.managed_memory" in rejection[1]


STAGE = """
import json, logging, sys
logging.basicConfig(level="INFO", stream=sys.stderr)
import torch
from gh200_lab.memory_run import begin_memory_run
from simpletuner.gh200.backends.ram.staging import stage
from simpletuner.gh200.config.cache_options import CacheOptions
from simpletuner.gh200.config.schema import InMemory
begin_memory_run(CacheOptions()).hints.settle_on(torch.device("cuda", 0))
found = {}
for name, codec in (("text", None), ("text", "lz4"), ("noise", "lz4"), ("noise", None)):
    arena = stage(name, f"{sys.argv[1]}/{name}", InMemory(compression=codec))
    found[f"{name} {codec}"] = [arena.files, arena.header["page_cache"]]
print(json.dumps(found))
"""


@pytest.mark.parametrize("family", ["gb10", "gh200"])
def test_one_pool_stages_only_what_compression_makes_smaller(family: str, tmp_path: Path) -> None:
    for name, content in (("text", b"text " * 20_000), ("noise", random.Random(0).randbytes(100_000))):
        (tmp_path / name).mkdir()
        for number in range(4):
            (tmp_path / name / f"{number}.bin").write_bytes(content)
    done = on(family, sys.executable, "-c", STAGE, str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    on_disk = ["text None", "noise lz4", "noise None"] if family == "gb10" else []
    expected = {
        name: [0, True] if name in on_disk else [4, False]
        for name in ("text None", "text lz4", "noise lz4", "noise None")
    }
    assert json.loads(done.stdout.splitlines()[-1]) == expected
    assert done.stderr.count("Not staged") == len(on_disk)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_diagnostic_fails_nothing_that_does_not_apply(family: str, tmp_path: Path) -> None:
    output = tmp_path / "report.json"
    on(family, sys.executable, "gh200_diagnostic.py", "--quiet", "--bandwidth", "--output", str(output))
    found = {check["id"]: check for check in json.loads(output.read_text())["checks"]}
    of_gpu = {name: found[name] for name in ("gpu_model", "c2c_links", "free_hbm", "allocation", "bandwidth")}
    assert [name for name, check in of_gpu.items() if check["status"] == "fail"] == []
    assert FAMILIES[family][0] in found["gpu_model"]["message"]
    skipped = [name for name, check in of_gpu.items() if "not applicable" in check["message"]]
    assert skipped == (["c2c_links", "free_hbm", "allocation"] if family == "gb10" else [])
