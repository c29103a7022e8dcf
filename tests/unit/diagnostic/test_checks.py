"""Every check of the diagnostic on recorded machines, and for each a machine on which it says its worst."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from diagnostic_lab import MACHINES, changed, diagnose

from simpletuner.gh200.diagnostic.allocation import Allocation
from simpletuner.gh200.diagnostic.bandwidth import Rate, _judged
from simpletuner.gh200.diagnostic.checks.table import CHECKS, Finding, run_checks
from simpletuner.gh200.diagnostic.facts import Facts, Preflighted
from simpletuner.gh200.diagnostic.software import _is_current
from simpletuner.gh200.diagnostic.status import gb
from simpletuner.gh200.memory.family import Family

GH200 = "gh200_480gb_numa"

# machine -> checks that do not pass there, apart from what was not asked for
EXPECTED: dict[str, dict[str, str]] = {
    "gh200_480gb_numa": {},
    "gh200_cdmm": {},
    "four_superchips": {"numa_binding": "warn"},
    "x86_h100": {
        "architecture": "warn", "numa_binding": "warn", "memlock": "warn", "gpu_model": "warn",
        "page_size": "skip", "init_on_alloc": "skip", "memory_mode": "skip", "c2c_links": "skip", "host_page_tables": "skip",
    },
    "gb10": {
        "page_size": "skip", "memory_mode": "skip", "c2c_links": "skip", "free_hbm": "skip", "beyond_hbm": "skip",
    },
    "limited_container": {
        "cgroup_memory": "warn", "memlock": "warn", "dev_shm": "warn", "driver_version": "warn", "python_version": "warn",
        "memory_mode": "skip", "addressing_mode": "skip", "c2c_links": "skip", "managed_memory": "skip",
        "host_page_tables": "skip", "torch_build": "skip", "torch_sees_gpu": "skip", "cuda_bindings": "skip",
        "packages": "skip", "torch_version": "skip", "beyond_hbm": "skip", "superchip_map": "skip", "gpu_model": "skip",
    },
    "aarch64_cpu_torch": {
        "page_size": "warn", "numa_balancing": "warn", "init_on_alloc": "warn", "cuda_device": "fail", "torch_build": "fail",
        "memory_mode": "skip", "gpu_model": "skip", "driver_version": "skip", "addressing_mode": "skip", "c2c_links": "skip",
        "managed_memory": "skip", "host_page_tables": "skip", "free_hbm": "skip", "torch_sees_gpu": "skip",
        "beyond_hbm": "skip", "superchip_map": "skip",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", MACHINES)
def test_recorded_machine_is_judged_as_it_should_be(name: str, tmp_path: Path) -> None:
    _, found = diagnose(changed(tmp_path, name))
    not_asked = {"allocation": "skip", "bandwidth": "skip"}
    assert {key: item.status for key, item in found.items() if item.status != "pass"} == EXPECTED[name] | not_asked
    assert all(item.fix for item in found.values() if item.status in ("warn", "fail"))
    assert all(item.message for item in found.values())


def test_facts_of_a_gh200_in_numa_mode(tmp_path: Path) -> None:
    facts, found = diagnose(changed(tmp_path, GH200))
    gpu = facts.gpus.devices[0]
    assert facts.memory_mode == "NUMA" and gpu.numa_node == 1 and gpu.c2c_links_active == 10 and gpu.coherent
    assert facts.gpus.driver_version == "580.95.05" and facts.gpus.cuda_version == "13.0"
    assert gpu.attributes["direct_managed_mem_access_from_host"] == 1 and gpu.attributes["numa_id"] == 1
    # The kernel counts HBM as its own in this mode; what a run can have on the host is LPDDR only.
    assert facts.host.cpu_memory_bytes == 501_000_000 * 1024
    assert facts.host.room_bytes == facts.host.cpu_available_bytes - 8 * 10**9 < facts.host.memory_available_bytes
    assert "node 1" in found["memory_mode"].message


def test_facts_of_the_other_machines(tmp_path: Path) -> None:
    assert diagnose(changed(tmp_path, "gh200_cdmm"))[0].memory_mode == "CDMM"
    four = diagnose(changed(tmp_path, "four_superchips"))[0]
    assert [gpu.numa_node for gpu in four.gpus.devices] == [4, 12, 20, 28] and four.gpus.usable == 4
    container = diagnose(changed(tmp_path, "limited_container"))[0]
    assert container.gpus.source == "nvidia-smi" and container.gpus.devices[0].compute_capability == (9, 0)
    assert container.host.groups[0].limit_bytes == 64 << 30 and container.host.groups[0].used_bytes == 20 << 30
    assert container.host.room_bytes < 44 << 30
    assert diagnose(changed(tmp_path, "x86_h100"))[0].memory_mode == "none"


Make = Callable[[Path], tuple[Facts, dict[str, Finding]]]
MEMINFO = "proc/meminfo"


def on(name: str, files: dict[str, str] | None = None, **answers: Any) -> Make:
    return lambda tmp_path: diagnose(changed(tmp_path, name, files, **answers))


def meminfo(total_gb: float, available_gb: float) -> str:
    return f"MemTotal: {int(total_gb * 1e9) // 1024} kB\nMemAvailable: {int(available_gb * 1e9) // 1024} kB\n"


def with_config(files: int = 1, machine: str = "limited_container", **config: Any) -> Make:
    """A machine, and a config whose dataset has some files of 1 MB."""

    def make(tmp_path: Path) -> tuple[Facts, dict[str, Finding]]:
        directory = tmp_path / "images"
        directory.mkdir()
        for number in range(files):
            (directory / f"{number}.png").write_bytes(b"\0" * 10**6)
        entry = {"id": "d", "type": "in_memory", "instance_data_dir": str(directory), "in_memory": {}}
        given = merge({"output_dir": str(tmp_path / "out"), "datasets": [entry]}, config)
        (tmp_path / "c.json").write_text(json.dumps(given))
        return diagnose(changed(tmp_path, machine), "--config", str(tmp_path / "c.json"))

    def merge(base: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
        options = config.pop("in_memory", {})
        directory = config.pop("directory", None)
        base["datasets"][0]["in_memory"] = options
        base["datasets"][0]["instance_data_dir"] = directory or base["datasets"][0]["instance_data_dir"]
        return base | config

    return make


def preflighted(tmp_path: Path) -> tuple[Facts, dict[str, Finding]]:
    """A config that preflight has nothing against; what it says itself is tested with it."""
    facts = replace(with_config()(tmp_path)[0], preflight=Preflighted(told=("model: there",)))
    return facts, {finding.id: finding for finding in run_checks(facts)}


def measured(**changes: Any) -> Make:
    def make(tmp_path: Path) -> tuple[Facts, dict[str, Finding]]:
        facts = replace(diagnose(changed(tmp_path, GH200))[0], **changes)
        return facts, {finding.id: finding for finding in run_checks(facts)}

    return make


SLOW = tuple(Rate("pinned", direction, 55.0, 50.0, 60.0) for direction in ("host to device", "device to host"))
CACHED = {"vae_cache_type": "unified_memory"}
# check -> a machine on which it says its worst, and words of what it then says
WORST: dict[str, tuple[Make, str]] = {
    "architecture": (on("x86_h100"), "x86_64"),
    "page_size": (on("aarch64_cpu_torch"), "4 KB"),
    "transparent_hugepages": (on(GH200, {"sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]"}), "never"),
    "numa_balancing": (on(GH200, {"proc/sys/kernel/numa_balancing": "1"}), "on"),
    "init_on_alloc": (on(GH200, {"proc/cmdline": "init_on_alloc=1"}), "init_on_alloc=1"),
    "memory_mode": (on(GH200, {"sys/devices/system/node/online": "0"}), "GPU 0 says node 1"),
    "numa_binding": (on("four_superchips"), "[0, 1, 2, 3]"),
    "superchip_map": (on("four_superchips", cpus=list(range(72))), "may only run on node 0"),
    "free_memory": (on("gh200_cdmm", {MEMINFO: meminfo(500, 1.5)}), "1.5 GB of 500.0 GB"),
    "cgroup_memory": (on("limited_container", {"sys/fs/cgroup/memory.current": "68719476000"}), "68.7 GB used"),
    "memlock": (on("x86_h100"), "8.4 MB"),
    "dev_shm": (on(GH200, shm=None), "does not exist"),
    "cuda_device": (on("aarch64_cpu_torch"), "no CUDA device"),
    "gpu_model": (on("x86_h100", nvml={"devices": {0: {"nvmlDeviceGetCudaComputeCapability": [7, 0]}}}), "7.0: no bf16"),
    "driver_version": (on(GH200, nvml={"nvmlSystemGetDriverVersion": "525.60.13"}), "need R535"),
    "addressing_mode": (
        on(GH200, nvml={"devices": {0: {"nvmlDeviceGetAddressingMode": 0}}}), "NONE; with ATS",
    ),
    "c2c_links": (on(GH200, nvml={"devices": {0: {"fields": {"171": {"3": 0}}}}}), "9 of 10"),
    "managed_memory": (on(GH200, driver={"attributes": {0: {"89": 0}}}), "no concurrent managed access"),
    "host_page_tables": (on(GH200, driver={"attributes": {0: {"100": 0}}}), "uses_host_page_tables off"),
    "free_hbm": (on(GH200, nvml={"devices": {0: {"nvmlDeviceGetMemoryInfo": {"used": 97000 << 20}}}}), "913.3 MB of"),
    "python_version": (on(GH200, python=[3, 11, 7]), "3.11.7"),
    "torch_build": (on("aarch64_cpu_torch"), "2.14.1+cpu"),
    "torch_version": (
        on(GH200, torch={"version": "2.9.0+uvm", "takes_uvm_keys": True}),
        "2.9.0+uvm, a build with use_uvm keys: SimpleTuner 4.10.1 asks for 2.13.0 or newer",
    ),
    "beyond_hbm": (on(GH200, torch={"lacking": ["torch.cuda.MemPool"]}), "has no torch.cuda.MemPool"),
    "torch_sees_gpu": (on(GH200, torch={"available": False, "device_count": 0}), "finds no GPU"),
    "cuda_bindings": (on(GH200, packages={"cuda-bindings": "12.6.0"}), "12.6.0"),
    "packages": (on(GH200, packages={"diffusers": None}), "missing: diffusers"),
    "allocator_config": (
        on(GH200, environ={"PYTORCH_CUDA_ALLOC_CONF": "use_uvm:True"}, allocator_rejects="Unrecognized key 'use_uvm'"),
        "Unrecognized key 'use_uvm'",
    ),
    "gh200_environment": (on(GH200, environ={"GH200_UVM_ACCESS_PATTERN": "gpu_frist"}), 'Did you mean "gpu_first"'),
    "upstream_release": (lambda tmp_path: without_fork(tmp_path), "no built fork"),
    "config_settings": (with_config(cache_config={"vae_cache_typ": "disk"}), "cache_config.vae_cache_typ"),
    "config_preflight": (with_config(pretrained_model_name_or_path="models/not-there"), "models/not-there does not exist"),
    "config_paths": (with_config(directory="nowhere/at/all"), "dataset directory nowhere/at/all"),
    "config_datasets": (with_config(3, in_memory={"memory_limit_gb": 0.002}), "allows 2.0 MB"),
    "config_caches": (with_config(4, cache_config=CACHED | {"memory_limit_gb": 0.001}), "read from disk at every step"),
    "config_oversubscription": (
        with_config(cache_config=CACHED, gh200_optimizations={"uvm_oversubscription_ratio": 5}), "ratio 5 x 102.6 GB",
    ),
    "config_ramp": (
        with_config(train_batch_size=0, gh200_optimizations={"initial_effective_batch_size": 4}), "train_batch_size",
    ),
    "config_codecs": (lambda tmp_path: without_lz4(tmp_path), "needs the package lz4"),
    "bandwidth": (measured(bandwidth=_judged(SLOW, 1 << 30, Family.COHERENT)), "below 80% of the lowest published"),
    "allocation": (measured(allocation=Allocation("fail", "prefetch of chunk 2 of 9: rejected")), "chunk 2 of 9"),
}  # fmt: skip


def without_fork(tmp_path: Path) -> tuple[Facts, dict[str, Finding]]:
    machine = changed(tmp_path, GH200)
    (machine.package / "__init__.py").unlink()
    return diagnose(machine)


def without_lz4(tmp_path: Path, machine: str = GH200) -> tuple[Facts, dict[str, Finding]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, "lz4.block", None)
        return with_config(machine=machine, in_memory={"compression": "lz4"})(tmp_path)


@pytest.mark.parametrize("check", WORST)
def test_check_says_its_worst(check: str, tmp_path: Path) -> None:
    make, words = WORST[check]
    _, found = make(tmp_path)
    finding = found[check]
    assert finding.status == next(item.worst for item in CHECKS if item.id == check), finding
    assert words in finding.message and finding.fix and "the check itself failed" not in finding.message


KEYS = {"PYTORCH_CUDA_ALLOC_CONF": "use_uvm:True,uvm_oversubscription_ratio:5.0,uvm_access_pattern:gpu_first"}


@pytest.mark.parametrize(
    ("changes", "by", "words"),
    [
        ({}, "pools", "pools of torch 2.14.1"),
        ({"torch": {"takes_uvm_keys": True}, "environ": KEYS}, "allocator keys", "its own allocator"),
        ({"torch": {"takes_uvm_keys": True}}, "pools", "keys that are not set"),
        ({"environ": KEYS, "allocator_rejects": "Unrecognized key"}, "pools", "pools of torch"),
        (
            {"torch": {"takes_uvm_keys": True, "lacking": ["torch.cuda.MemPool"]}},
            "nothing",
            "has no torch.cuda.MemPool",
        ),
    ],
)
def test_how_torch_goes_beyond_hbm(changes: dict[str, Any], by: str, words: str, tmp_path: Path) -> None:
    facts, found = diagnose(changed(tmp_path, GH200, **changes))
    assert facts.software.beyond_hbm.by == by and words in found["beyond_hbm"].message


def test_no_check_lacks_a_machine_on_which_it_fails() -> None:
    assert list(WORST) == list(dict.fromkeys(WORST)) and set(WORST) == {check.id for check in CHECKS}
    assert len({check.id for check in CHECKS}) == len(CHECKS)


def test_every_check_passes_somewhere(tmp_path: Path) -> None:
    """A check that always fails shows nothing."""
    best: dict[str, int] = {}
    makes = [on(name) for name in MACHINES]
    makes.append(
        with_config(
            cache_config=CACHED, in_memory={"compression": "zlib"},
            gh200_optimizations={"initial_effective_batch_size": 2, "target_effective_batch_size": 8, "uvm_oversubscription_ratio": 1.2},
        )
    )  # fmt: skip
    makes.append(preflighted)
    rates = tuple(replace(rate, median=350.0) for rate in SLOW)
    makes.append(measured(bandwidth=_judged(rates, 1 << 30, Family.COHERENT), allocation=Allocation("pass", "proved")))
    for number, make in enumerate(makes):
        (tmp_path / str(number)).mkdir()
        for key, item in make(tmp_path / str(number))[1].items():
            best[key] = min(best.get(key, 9), 0 if item.status == "pass" else 1)
    assert [key for key, value in best.items() if value] == []


MORE: list[tuple[str, Make, str, str]] = [
    ("driver_version", on(GH200, nvml={"nvmlSystemGetDriverVersion": "565.57.01"}), "warn", "file cache in HBM"),
    ("cuda_device", on(GH200, nvidia_smi={"code": None, "problem": "no answer from nvidia-smi within 10 s", "hung": True}), "fail", "no answer"),
    ("cuda_device", on(GH200, driver={"unavailable": "there is no usable CUDA driver"}), "fail", "NVML sees 1 x"),
    (
        "cuda_device",
        on("four_superchips", environ={"CUDA_VISIBLE_DEVICES": "2"}, driver={"attributes": [{"83": 1, "89": 1, "100": 1}]}),
        "pass",
        "CUDA can use 1 of 4",
    ),
    ("torch_build", on(GH200, torch={"error": "ImportError: libtorch.so: undefined symbol"}), "fail", "undefined symbol"),
    ("torch_build", on("x86_h100", torch={"version": "2.14.1+cpu", "cuda": None}), "fail", "CPU build"),
    ("torch_sees_gpu", on(GH200, torch={"architectures": ["sm_75", "sm_80"]}), "fail", "no code for sm_90"),
    ("torch_sees_gpu", on(GH200, torch={"architectures": ["sm_80", "sm_90"]}), "pass", "1 of 1"),
    ("gh200_environment", on(GH200, environ={"GH200_UVM_OVERSUBSCRIPTION_RATIO": "-1"}), "fail", "RATIO"),
    ("gh200_environment", on(GH200, environ={"GH200_UVM_RATIO": "2"}), "warn", "not one of ours"),
    ("packages", on(GH200, packages={"lz4": None}), "warn", "lz4"),
    ("free_memory", on(GH200, {MEMINFO: ""}), "fail", "cannot be read"),
    ("memory_mode", on(GH200, nvml={"devices": {0: {"nvmlDeviceGetNumaNodeId": None}}}, driver={"attributes": {0: {"130": 0}}}), "warn", "[1]"),
    ("config_datasets", with_config(3, in_memory={"memory_limit_gb": 0.002, "on_limit": "partial"}), "warn", "allows"),
    ("config_datasets", with_config(30, in_memory={"memory_limit_gb": 0.025, "compression": "zlib"}), "pass", "30 files"),
    ("config_ramp", with_config(gh200_optimizations={"initial_effective_batch_size": 4, "target_effective_batch_size": 8}), "pass", "effective batch 4"),
    ("config_ramp", with_config(train_batch_size="2", initial_effective_batch_size=4, gh200_optimizations={"target_effective_batch_size": 8}), "pass", "effective batch 4"),
    ("config_ramp", with_config(gradient_accumulation_steps=0, initial_effective_batch_size=4), "fail", "at least 1; got 0"),
    ("config_settings", with_config(target_effective_batch_size=8), "fail", 'belongs inside the block "gh200_optimizations"'),
    ("config_settings", with_config(in_memory={"compression": "lz5"}), "fail", "in_memory.compression"),
    ("config_codecs", lambda tmp_path: without_lz4(tmp_path, "limited_container"), "skip", "Neither is torch"),
    ("config_paths", with_config(0), "fail", "holds no files"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "make", "status", "words"), MORE, ids=[f"{item[0]}-{item[3]}" for item in MORE])
def test_check_in_other_situations(check: str, make: Make, status: str, words: str, tmp_path: Path) -> None:
    finding = make(tmp_path)[1][check]
    assert (finding.status, words in finding.message) == (status, True), finding


ODD = [
    {"in_memory": "lz4"},
    {"in_memory": ["lz4"]},
    {"resolution": "nan"},
    {"resolution": [1024]},
    {"instance_data_dir": 5},
    {"type": 7},
    {"id": None},
]


@pytest.mark.parametrize("odd", ODD, ids=str)
def test_odd_dataset_entries_are_judged_not_stumbled_over(odd: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"1")
    entry = {"id": "d", "type": "in_memory", "instance_data_dir": str(tmp_path)} | odd
    (tmp_path / "c.json").write_text(json.dumps({"datasets": [entry, "nonsense"]}))
    found = diagnose(changed(tmp_path / "machine", GH200), "--config", str(tmp_path / "c.json"))[1]
    assert found["config_settings"].status == "fail" and "datasets[1]" in found["config_settings"].message
    assert not [item for item in found.values() if "the check itself failed" in item.message]


@pytest.mark.parametrize("text", [None, "{", "[" * 100_000])
def test_dataset_file_that_cannot_be_used(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "sets.json").write_text(text)
    (tmp_path / "c.json").write_text(json.dumps({"data_backend_config": str(tmp_path / "sets.json")}))
    found = diagnose(changed(tmp_path / "machine", GH200), "--config", str(tmp_path / "c.json"))[1]
    assert found["config_paths"].status == "fail" and "sets.json cannot be used" in found["config_paths"].message


def test_config_that_names_no_dataset(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text("{}")
    found = diagnose(changed(tmp_path / "machine", GH200), "--config", str(tmp_path / "c.json"))[1]
    assert "names no dataset" in found["config_paths"].message


def test_visible_devices_choose_whose_attributes_are_shown(tmp_path: Path) -> None:
    attributes = [{"83": 1, "89": 1, "100": 1, "130": 1, "131": 20}]
    uuids = {place: {"nvmlDeviceGetUUID": f"GPU-{place}"} for place in range(4)}
    machine = changed(
        tmp_path, "four_superchips", environ={"CUDA_VISIBLE_DEVICES": "2"}, nvml={"devices": uuids},
        driver={"attributes": attributes, "uuids": ["GPU-2"]},
    )  # fmt: skip
    facts, _ = diagnose(machine)
    assert [bool(gpu.attributes) for gpu in facts.gpus.devices] == [False, False, True, False]
    assert facts.gpus.devices[2].numa_node == 20


@pytest.mark.parametrize("words", ["libcuda is gone", "cuda.bindings is a word of this sentence"])
def test_whether_cuda_was_asked_is_a_fact_not_a_word_of_the_reason(words: str, tmp_path: Path) -> None:
    asked = diagnose(changed(tmp_path / "asked", GH200, driver={"unavailable": words}))[1]
    missing = {"unavailable": words, "bindings_missing": True}
    not_asked = diagnose(changed(tmp_path / "not", GH200, driver=missing))[1]
    assert (asked["cuda_device"].status, not_asked["cuda_device"].status) == ("fail", "pass")


def test_a_hung_nvidia_smi_is_a_fact_not_the_start_of_a_sentence(tmp_path: Path) -> None:
    answer = {"code": None, "problem": "nvidia-smi was silent", "hung": True}
    facts, found = diagnose(changed(tmp_path, GH200, nvidia_smi=answer))
    assert facts.gpus.hung and "the NVIDIA driver is stuck" in found["cuda_device"].fix


def test_what_a_cgroup_leaves_is_found_by_kind(tmp_path: Path) -> None:
    facts, _ = diagnose(changed(tmp_path, "limited_container"))
    renamed = tuple(
        replace(limit, name="?", bytes=5) if limit.kind == "machine" else limit for limit in facts.host.rooms
    )
    group = min(limit.bytes for limit in facts.host.rooms if limit.kind == "control group")
    findings = run_checks(replace(facts, host=replace(facts.host, rooms=renamed)))
    (check,) = [finding for finding in findings if finding.id == "cgroup_memory"]
    assert f"a run may take {gb(group)}" in check.message


@pytest.mark.parametrize(
    "name",
    ["SIMPLETUNER_GH200_ENABLE_UVM_HINTS", "GH200_UVM_OVERSUBSCRIPTION_RATIO", "GH200_UVM_ACCESS_PATTERN"],
)
def test_every_variable_is_judged_as_a_run_judges_it(name: str, tmp_path: Path) -> None:
    found = diagnose(changed(tmp_path, GH200, environ={name: "maybe"}))[1]["gh200_environment"]
    assert found.status == "fail" and f"environment variable {name}: must be" in found.message


def test_a_fork_built_from_another_state_is_noticed_in_every_package(tmp_path: Path) -> None:
    for top in ("repository/simpletuner/gh200/ramp", "repository/build/fork/simpletuner/gh200/ramp"):
        (tmp_path / top).mkdir(parents=True)
        (tmp_path / top / "lr.py").write_text("one = 1\n")
    package = tmp_path / "repository/simpletuner"
    assert _is_current(package, tmp_path / "repository/build/fork")
    (package / "gh200/ramp/lr.py").write_text("one = 2\n")
    assert not _is_current(package, tmp_path / "repository/build/fork")
