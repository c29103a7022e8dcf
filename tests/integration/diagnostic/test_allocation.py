"""The diagnostic's tests on the GPU, against the simulated driver: what is called, what is proved, what is left behind."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cuda_sim.processes import CannotBuild, Machine, old_bindings

MIB = 1 << 20
# Upstream's torch plays no part here; asking for it would cost a process that imports it.
RUN = """
import json, sys
from simpletuner.gh200.cli.doctor import main
from simpletuner.gh200.diagnostic.machine import Machine
machine = Machine(importable=lambda name: False)
code = main({words!r}, machine)
print("CODE", code)
"""
DEVICE = """
from simpletuner.gh200.diagnostic.allocation import *
from simpletuner.gh200.diagnostic.bandwidth import *
from simpletuner.gh200.diagnostic.device import Device
from simpletuner.gh200.memory.driver import load_driver
device = Device(load_driver(), 0)
quiet = lambda work: None
MIB, PLENTY = 1 << 20, lambda: 1 << 30
"""


def diagnosed(machine: Machine, *words: str, **faults: object) -> dict[str, Any]:
    output = machine.run(RUN.format(words=["--quiet", *words]), **faults)
    report = json.loads((machine.log.parent / "gh200_diagnostic_report.json").read_text())
    assert f"CODE {report['summary']['exit_code']}" in output
    return report


def finding(report: dict[str, Any], name: str) -> dict[str, str]:
    return next(check for check in report["checks"] if check["id"] == name)


def freed(machine: Machine) -> bool:
    """Every managed allocation that was made is gone."""
    made = [call for call in machine.calls("cuMemAllocManaged") if call["result"] == "0"]
    return len([call for call in machine.calls("cuMemFree_v2") if call["result"] == "0"]) == len(made)


def test_allocation_beyond_hbm_is_proved(machine: Machine) -> None:
    report = diagnosed(machine, hbm=64 * MIB)
    check, outcome = finding(report, "allocation"), report["facts"]["allocation"]
    assert check["status"] == "pass", check
    assert "1.50 x HBM" in check["message"] and "not proved: speed" in check["message"]
    assert outcome["size_bytes"] == 96 * MIB and outcome["hbm_bytes"] == 64 * MIB
    assert outcome["filled"] == outcome["verified"] == outcome["moved_to_gpu"] == outcome["chunks"] > 8
    assert outcome["hbm_used_bytes"] == 64 * MIB and outcome["freed"] is True
    fills, moves = machine.calls("cuMemsetD32Async"), machine.calls("cuMemPrefetchAsync_v2")
    assert sum(int(call["bytes"]) for call in fills) == sum(int(call["bytes"]) for call in moves) == 96 * MIB
    assert len({call["value"] for call in fills}) == len(fills), "two chunks with the same content could be mixed up"
    assert {call["type"] for call in moves} == {"1"}
    assert freed(machine) and len(machine.calls("cuStreamDestroy_v2")) == 1
    assert finding(report, "cuda_device")["status"] == "pass"


def test_allocation_and_bandwidth_through_the_older_bindings(machine: Machine) -> None:
    try:
        older = Machine(old_bindings(), machine.log)
    except CannotBuild as reason:
        pytest.skip(str(reason))
    report = diagnosed(older, "--bandwidth", hbm=64 * MIB)
    assert [finding(report, name)["status"] for name in ("allocation", "bandwidth")] == ["pass", "pass"]


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        ({"managed": MIB}, "rejected: cuMemAllocManaged returned CUDA_ERROR_OUT_OF_MEMORY"),
        ({"fail": "cuMemPrefetchAsync_v2", "fail_code": 2, "fail_after": 3}, "chunk 4 of 16: cuMemPrefetchAsync"),
        ({"fail": "cuMemsetD32Async", "fail_code": 700, "fail_after": 5}, "chunk 6 of 16: cuMemsetD32Async"),
        ({"fail": "cuStreamSynchronize", "fail_code": 719, "fail_after": 4}, "CUDA_ERROR_LAUNCH_FAILED"),
        ({"fail": "cuMemRangeGetAttribute", "fail_code": 999}, "cuMemRangeGetAttribute returned CUDA_ERROR_UNKNOWN"),
        ({"corrupt": 3}, "chunk 3 of 16 has wrong bytes"),
    ],
)
def test_allocation_that_fails_half_way(machine: Machine, faults: dict[str, object], words: str) -> None:
    report = diagnosed(machine, hbm=64 * MIB, **faults)
    check = finding(report, "allocation")
    assert check["status"] == "fail" and words in check["message"] and check["fix"], check
    assert freed(machine) and report["summary"]["exit_code"] == 1
    assert "were rejected" in check["message"] or "the memory was freed" in check["message"]


def test_allocation_says_when_it_cannot_free(machine: Machine) -> None:
    check = finding(diagnosed(machine, hbm=64 * MIB, fail="cuMemFree_v2", fail_code=700), "allocation")
    assert (
        check["status"] == "fail"
        and "could not be freed" in check["message"]
        and "goes with this process" in check["message"]
    )


def test_allocation_after_which_no_call_succeeds(machine: Machine) -> None:
    report = diagnosed(machine, hbm=64 * MIB, fail="*", fail_code=719, fail_after=120)
    check = finding(report, "allocation")
    assert check["status"] == "fail" and "CUDA_ERROR_LAUNCH_FAILED" in check["message"], check
    assert "could not be freed" in check["message"] and report["facts"]["allocation"]["filled"] > 0


def test_allocation_on_a_gpu_that_cannot_be_opened(machine: Machine) -> None:
    report = diagnosed(machine, "--bandwidth", fail="cuDevicePrimaryCtxRetain", fail_code=46)
    for name in ("allocation", "bandwidth"):
        check = finding(report, name)
        assert check["status"] == "fail" and "CUDA_ERROR_DEVICE_UNAVAILABLE" in check["message"]


@pytest.mark.parametrize(
    ("faults", "words"), [({"concurrent": 0}, "no concurrent managed access"), ({"devices": 0}, "no CUDA device")]
)
def test_allocation_is_left_out_where_it_cannot_be_had(machine: Machine, faults: dict[str, object], words: str) -> None:
    check = finding(diagnosed(machine, **faults), "allocation")
    assert check["status"] == "skip" and words in check["message"]
    assert not machine.calls("cuMemAllocManaged")


def test_allocation_can_be_skipped(machine: Machine) -> None:
    report = diagnosed(machine, "--skip-allocation")
    assert report["facts"]["allocation"] is None and finding(report, "allocation")["status"] == "skip"
    assert not machine.calls("cuMemAllocManaged") and not machine.calls("cuDevicePrimaryCtxRetain")


def test_allocation_is_bounded_by_what_the_host_can_give(machine: Machine) -> None:
    machine.run(
        DEVICE
        + """
whole = try_allocation(device, 2.0, lambda: 200 * MIB, quiet)
assert (whole.status, whole.size_bytes) == ("pass", 128 * MIB), whole
part = try_allocation(device, 2.0, lambda: 20 * MIB, quiet)
assert (part.status, part.size_bytes) == ("warn", 84 * MIB) and "only 1.31 x HBM of 2" in part.message, part
none = try_allocation(device, 2.0, lambda: 0, quiet)
assert none.status == "skip" and "134.2 MB (2 x HBM) cannot be tried" in none.message and none.size_bytes == 0, none
inside = try_allocation(device, 0.5, PLENTY, quiet)
assert inside.status == "warn" and "nothing beyond HBM" in inside.message, inside
""",
        hbm=64 * MIB,
    )
    assert freed(machine) and len(machine.calls("cuMemAllocManaged")) == 3


def test_allocation_stops_when_the_host_runs_low(machine: Machine) -> None:
    machine.run(
        DEVICE
        + """
left = [200 * MIB] * 5 + [0] * 100
low = try_allocation(device, 1.5, lambda: left.pop(0), quiet)
assert low.status == "fail" and low.filled == 4 and low.verified == 0 and "ran low on memory" in low.message, low
assert low.freed
""",
        hbm=64 * MIB,
    )
    assert freed(machine)


@pytest.mark.parametrize("work", ["written by the GPU", "read back by the host"])
def test_allocation_is_freed_after_an_interrupt(machine: Machine, work: str) -> None:
    machine.run(
        DEVICE
        + f"""
def interrupt(work):
    if work == {work!r}:
        raise KeyboardInterrupt
try:
    try_allocation(device, 1.5, PLENTY, interrupt)
except KeyboardInterrupt:
    print("interrupted")
else:
    raise AssertionError("the interrupt was swallowed")
""",
        hbm=64 * MIB,
    )
    assert freed(machine) and machine.calls("cuMemAllocManaged")


def test_allocation_interrupt_ends_with_130_and_no_report(machine: Machine) -> None:
    output = machine.run(
        """
from simpletuner.gh200.cli import doctor as diagnostic
from simpletuner.gh200.diagnostic.machine import Machine
diagnostic.Progress.__call__ = lambda self, work: (_ for _ in ()).throw(KeyboardInterrupt()) if "GPU" in work else None
print("CODE", diagnostic.main([], Machine(importable=lambda name: False)))
""",
        hbm=64 * MIB,
    )
    assert "CODE 130" in output and "freed" in output and freed(machine)
    assert not (machine.log.parent / "gh200_diagnostic_report.json").exists()


def test_bandwidth_measures_three_paths_both_ways(machine: Machine) -> None:
    report = diagnosed(machine, "--bandwidth", "--skip-allocation", hbm=64 * MIB, mode="numa")
    outcome = report["facts"]["bandwidth"]
    assert [(rate["path"], rate["direction"]) for rate in outcome["rates"]] == [
        (path, direction)
        for path in ("pageable", "pinned", "managed prefetch")
        for direction in ("host to device", "device to host")
    ]
    assert all(0 < rate["lowest"] <= rate["median"] <= rate["highest"] for rate in outcome["rates"])
    copies = machine.calls("cuMemcpyHtoDAsync_v2")
    assert len(copies) == len(machine.calls("cuMemcpyDtoHAsync_v2")) == 12
    assert {int(call["bytes"]) for call in copies} == {outcome["bytes"]} == {16 * MIB}
    assert len(machine.calls("cuMemPrefetchAsync_v2")) == 12
    assert len(machine.calls("cuMemFreeHost")) == 1 and len(machine.calls("cuMemFree_v2")) == 3
    assert "not measured by us" in finding(report, "bandwidth")["message"]


def test_bandwidth_on_pcie_is_not_judged(machine: Machine) -> None:
    check = finding(diagnosed(machine, "--bandwidth", "--skip-allocation", mode="pcie"), "bandwidth")
    assert check["status"] == "pass" and "not judged" in check["message"]


@pytest.mark.parametrize("call", ["cuMemHostAlloc", "cuMemAlloc_v2", "cuMemcpyDtoHAsync_v2", "cuMemGetInfo_v2"])
def test_bandwidth_frees_what_it_had(machine: Machine, call: str) -> None:
    check = finding(
        diagnosed(machine, "--bandwidth", "--skip-allocation", fail=call, fail_code=2, fail_after=0), "bandwidth"
    )
    assert check["status"] == "fail" and "CUDA_ERROR_OUT_OF_MEMORY" in check["message"], check
    for made, gone in (("cuMemAlloc_v2", "cuMemFree_v2"), ("cuMemHostAlloc", "cuMemFreeHost")):
        assert len([item for item in machine.calls(made) if item["result"] == "0"]) == len(machine.calls(gone))
