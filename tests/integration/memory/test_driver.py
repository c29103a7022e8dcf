"""The typed driver layer against the simulated driver, through the real cuda.bindings 13 and 12.9."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cuda_sim.needed import cuda_sim_or_skip
from tests.cuda_sim.processes import ROOT, CannotBuild, Machine, build, old_bindings

PREAMBLE = """
from simpletuner.gh200.memory.driver import *
driver = load_driver()
assert isinstance(driver, Driver), driver
def error_of(call):
    try:
        call()
    except CudaError as error:
        return error.name
    return None
MIB = 1 << 20
"""


@pytest.fixture(params=["13", "12.9"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    try:
        build()
        bindings = old_bindings() if request.param == "12.9" else None
    except CannotBuild as reason:
        pytest.skip(str(reason))
    return Machine(bindings, tmp_path / "calls.log")


def test_driver_every_call_is_accepted(machine: Machine) -> None:
    machine.run(
        PREAMBLE
        + """
pointer = driver.allocate_managed(4 * MIB, 1)
driver.advise(pointer, 4 * MIB, Advice.SET_PREFERRED_LOCATION, Place(1), 0)
driver.advise(pointer, 4 * MIB, Advice.SET_ACCESSED_BY, HOST, 0)
driver.advise(pointer, 4 * MIB, Advice.SET_READ_MOSTLY, Place(1), 0)
assert driver.range_attribute(pointer, 4 * MIB, RangeAttribute.PREFERRED_LOCATION, 1) == 1
assert driver.range_attribute(pointer, 4 * MIB, RangeAttribute.READ_MOSTLY, 1) == 1
assert driver.range_attribute(pointer, 4 * MIB, RangeAttribute.LAST_PREFETCH_LOCATION, 1) == -2
stream, event = driver.create_stream(1), driver.create_event(1)
free, total = driver.memory_info(1)
assert driver.total_memory(1) == total
driver.prefetch(pointer, MIB, Place(1), stream, 1)
driver.record_event(event, stream, 1)
assert driver.event_reached(event, 1)
assert driver.memory_info(1) == (free - MIB, total)
driver.prefetch(pointer, MIB, HOST, stream, 1)
assert driver.memory_info(1) == (free, total)
assert driver.range_attribute(pointer, MIB, RangeAttribute.LAST_PREFETCH_LOCATION, 1) == -1
assert driver.range_attribute(pointer, 4 * MIB, RangeAttribute.LAST_PREFETCH_LOCATION, 1) == -2, 'only a part was moved'
assert driver.managed_range(pointer + 99, 1) == ManagedRange(pointer, 4 * MIB)
assert driver.managed_range(id(driver), 1) is None
assert driver.device_attribute(DeviceAttribute.CONCURRENT_MANAGED_ACCESS, 1) == 1
assert driver.device_name(1) == "Simulated 1" and driver.version == 13000 and driver.device_count == 2
driver.synchronize(1)
driver.free(pointer, 1)
""",
        devices=2,
    )
    advice = machine.calls("cuMemAdvise_v2")
    given = [(call["advice"], call["type"], call["id"]) for call in advice]
    assert given == [("3", "1", "1"), ("5", "2", "0"), ("1", "1", "1")]
    assert {call["result"] for call in advice} == {"0"}
    assert [call["flags"] for call in machine.calls("cuMemPrefetchAsync_v2")] == ["0", "0"]


def test_driver_rejections_carry_the_cuda_name(machine: Machine) -> None:
    machine.run(
        PREAMBLE
        + """
pointer = driver.allocate_managed(MIB, 0)
invalid = "CUDA_ERROR_INVALID_VALUE"
assert error_of(lambda: driver.allocate_managed(0, 0)) == invalid
assert error_of(lambda: driver.allocate_managed(1 << 40, 0)) == "CUDA_ERROR_OUT_OF_MEMORY"
assert error_of(lambda: driver.advise(pointer + 1, 65536, Advice.SET_READ_MOSTLY, HOST, 0)) == invalid
assert error_of(lambda: driver.advise(pointer, 2 * MIB, Advice.SET_READ_MOSTLY, HOST, 0)) == invalid
assert error_of(lambda: driver.advise(pointer, MIB, Advice.SET_ACCESSED_BY, Place(7), 0)) == "CUDA_ERROR_INVALID_DEVICE"
assert error_of(lambda: driver.advise(id(driver), MIB, Advice.SET_READ_MOSTLY, HOST, 0)) == invalid
assert error_of(lambda: driver.prefetch(pointer, 65536, Place(0), 999, 0)) == "CUDA_ERROR_INVALID_HANDLE"
driver.free(pointer, 0)
assert error_of(lambda: driver.free(pointer, 0)) == invalid
assert error_of(lambda: driver.prefetch(pointer, 65536, Place(0), 0, 0)) == invalid
assert driver.managed_range(pointer, 0) is None
"""
    )


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        ({"init_error": 100}, "CUDA_ERROR_NO_DEVICE"),
        ({"version": 11080}, "11.8 is too old"),
        ({"devices": 0}, "sees no GPU"),
    ],
)
def test_driver_unusable_is_said_not_raised(machine: Machine, faults: dict[str, object], words: str) -> None:
    code = (
        "from simpletuner.gh200.memory.driver import *; d = load_driver(); assert not isinstance(d, Driver); print(d)"
    )
    said = machine.run(code, **faults)
    assert words in said


def test_driver_fault_after_some_calls(machine: Machine) -> None:
    machine.run(
        PREAMBLE
        + """
pointer = driver.allocate_managed(MIB, 0)
advise = lambda: driver.advise(pointer, MIB, Advice.SET_READ_MOSTLY, HOST, 0)
assert [error_of(advise) for _ in range(4)] == [None, None, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA_ERROR_DEVICE_UNAVAILABLE"]
try:
    advise()
except CudaError as error:
    assert error.device_gone
""",
        fail="cuMemAdvise_v2", fail_code=46, fail_after=2,
    )  # fmt: skip


def test_driver_capacity_evicts_the_oldest_pages(machine: Machine) -> None:
    machine.run(
        PREAMBLE
        + """
import ctypes
first, second = driver.allocate_managed(MIB, 0), driver.allocate_managed(MIB, 0)
driver.prefetch(first, MIB, Place(0), 0, 0)
driver.prefetch(second, MIB // 2, Place(0), 0, 0)
fake = ctypes.CDLL("libcuda.so.1").cuda_sim_resident
fake.argtypes, fake.restype = [ctypes.c_ulonglong, ctypes.c_size_t, ctypes.c_int], ctypes.c_size_t
assert fake(second, MIB, 0) == MIB // 2 and fake(first, MIB, 0) == MIB // 2 and fake(first, MIB, -1) == MIB // 2
assert driver.memory_info(0)[0] == 0
""",
        hbm=1 << 20,
    )


def test_driver_layer_leaves_a_forked_child_alone(machine: Machine) -> None:
    machine.run(
        PREAMBLE
        + """
import os
child = os.fork()
if not child:
    os._exit(0 if error_of(lambda: driver.allocate_managed(MIB, 0)) == "CUDA_ERROR_NOT_INITIALIZED" else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    )


def test_driver_old_interface_is_caught(tmp_path: Path) -> None:
    """What the old fork did: a device number where a location belongs. Two of three are rejected, the third goes astray."""
    cuda_sim_or_skip()
    machine = Machine(None, tmp_path / "calls.log")
    machine.run(
        PREAMBLE
        + """
import ctypes
raw = ctypes.CDLL("libcuda.so.1")
pointer = driver.allocate_managed(MIB, 0)
old_advise, old_prefetch = raw.cuMemAdvise_v2, raw.cuMemPrefetchAsync_v2
old_advise.argtypes = [ctypes.c_ulonglong, ctypes.c_size_t, ctypes.c_int, ctypes.c_int]
old_prefetch.argtypes = [ctypes.c_ulonglong, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
assert old_advise(pointer, MIB, Advice.SET_PREFERRED_LOCATION, 0) == 1
assert old_advise(pointer, MIB, Advice.SET_PREFERRED_LOCATION, -1) == 1
stream = driver.create_stream(0)
with driver.on_device(0):
    assert old_prefetch(pointer, MIB, 0, stream) != 0
assert old_advise(pointer, MIB, Advice.SET_PREFERRED_LOCATION, 1) == 0
assert driver.range_attribute(pointer, MIB, RangeAttribute.PREFERRED_LOCATION, 0) == 0, "meant GPU 1"
""",
        devices=2,
    )


def test_driver_absent_without_a_library(tmp_path: Path) -> None:
    code = "from simpletuner.gh200.memory.driver import *; d = load_driver(); print(type(d).__name__, d)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT)}, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    if not done.stdout.startswith("DriverUnavailable"):
        pytest.skip("this machine has a CUDA driver")
    assert "no usable CUDA driver" in done.stdout
