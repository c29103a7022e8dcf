"""Free memory of a GPU by truth: page cache that the kernel gives back is free, nothing is counted twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from simpletuner.gh200.memory import hbm, numa
from simpletuner.gh200.memory.family import Family, Platform
from simpletuner.gh200.memory.limits import Limit

GB = 10**9


class FakeDriver:
    """As much as CUDA reports free."""

    def __init__(self, free: int, total: int) -> None:
        self._memory = free, total

    def memory_info(self, device: int) -> tuple[int, int]:
        return self._memory


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(hbm, "Driver", FakeDriver)
    monkeypatch.setattr(hbm, "memory_limits", lambda: [Limit("machine", "MemAvailable", 110 * GB)])
    return monkeypatch


def set_up(machine: pytest.MonkeyPatch, platform: Platform, free: int, total: int) -> None:
    machine.setattr(hbm, "load_driver", lambda: FakeDriver(free, total))
    machine.setattr(hbm, "platform", lambda device: platform)


def test_one_pool_is_what_the_kernel_could_give(machine: pytest.MonkeyPatch) -> None:
    """Measured on a GB10 in github.com/unslothai/unsloth/pull/10704: CUDA's free is MemFree, MemAvailable does not move."""
    set_up(machine, Platform(Family.ONE_POOL), 41 * GB, 128 * GB)
    assert hbm.free_and_total(0) == (110 * GB, 128 * GB)


def test_page_cache_of_an_hbm_node_is_free_and_never_more_than_all(machine: pytest.MonkeyPatch) -> None:
    set_up(machine, Platform(Family.COHERENT, 1), 75 * GB, 142 * GB)
    machine.setattr(hbm, "file_cache_of", lambda node: {1: 60 * GB}[node])
    assert hbm.free_and_total(0) == (135 * GB, 142 * GB)
    machine.setattr(hbm, "file_cache_of", lambda node: 90 * GB)
    assert hbm.free_and_total(0) == (142 * GB, 142 * GB)


@pytest.mark.parametrize("platform", [Platform(Family.COHERENT), Platform(Family.DISCRETE)])
def test_elsewhere_it_is_what_cuda_reports(machine: pytest.MonkeyPatch, platform: Platform) -> None:
    set_up(machine, platform, 75 * GB, 80 * GB)
    assert hbm.free_and_total(0) == (75 * GB, 80 * GB)


def test_file_cache_of_a_node_is_active_and_inactive_pages_of_files(tmp_path: Path) -> None:
    (tmp_path / "node1").mkdir()
    lines = {"MemTotal": 99, "MemFree": 9, "Active(file)": 3, "Inactive(file)": 4, "Shmem": 5}
    text = "".join(f"Node 1 {field}:       {value} kB\n" for field, value in lines.items())
    (tmp_path / "node1/meminfo").write_text(text)
    assert numa.file_cache_of(1, tmp_path) == 7 * 1024 and numa.file_cache_of(2, tmp_path) == 0
