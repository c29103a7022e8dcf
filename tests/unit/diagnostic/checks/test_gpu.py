"""The diagnostic's map of superchips, on recorded machines."""

from __future__ import annotations

from pathlib import Path

from diagnostic_lab import changed, diagnose

FOUR = "four_superchips"
UUIDS = [f"GPU-{letter * 8}" for letter in "abcd"]


def numbered(order: list[int]) -> dict[str, object]:
    """NVML's devices have UUIDs, and CUDA counts them in this order."""
    return {
        "nvml": {"devices": {place: {"nvmlDeviceGetUUID": uuid} for place, uuid in enumerate(UUIDS)}},
        "driver": {"uuids": [UUIDS[place] for place in order]},
    }


def test_superchip_map_names_gpu_cpu_node_and_hbm_node_of_each_rank(tmp_path: Path) -> None:
    _, found = diagnose(changed(tmp_path, FOUR, **numbered([0, 1, 2, 3])))
    assert found["superchip_map"].status == "pass"
    assert f"rank 1: GPU 1, {UUIDS[1]}, CPU node 1, HBM node 12" in found["superchip_map"].message


def test_superchip_map_follows_the_uuid_where_cuda_counts_otherwise(tmp_path: Path) -> None:
    facts, found = diagnose(changed(tmp_path, FOUR, **numbered([2, 0, 1, 3])))
    assert f"rank 0: GPU 2, {UUIDS[2]}" in found["superchip_map"].message
    assert {gpu.index: gpu.cuda_number for gpu in facts.gpus.devices} == {0: 1, 1: 2, 2: 0, 3: 3}


def test_superchip_map_shows_only_what_the_job_may_use(tmp_path: Path) -> None:
    hidden = numbered([3])
    hidden["driver"] = {"uuids": [UUIDS[3]], "names": ["NVIDIA GH200 120GB"], "attributes": [dict(CUDA_3)]}
    _, found = diagnose(changed(tmp_path, FOUR, environ={"CUDA_VISIBLE_DEVICES": UUIDS[3]}, **hidden))
    assert found["superchip_map"].message.startswith(f"rank 0: GPU 3, {UUIDS[3]}, CPU node 3, HBM node 28")
    assert "rank 1" not in found["superchip_map"].message


CUDA_3 = {"83": 1, "88": 1, "89": 1, "100": 1, "101": 1, "130": 1, "131": 28, "134": 3}


def test_superchip_map_says_that_the_cpus_are_another_superchips(tmp_path: Path) -> None:
    _, found = diagnose(changed(tmp_path, FOUR, cpus=list(range(72)), **numbered([0, 1, 2, 3])))
    assert found["superchip_map"].status == "warn"
    message = found["superchip_map"].message
    assert "may only run on node 0, not beside GPU 1 (node 1), GPU 2 (node 2), GPU 3 (node 3)" in message
    assert "--gpus-per-node" in found["superchip_map"].fix


def test_superchip_map_without_a_gpu_is_skipped(tmp_path: Path) -> None:
    _, found = diagnose(changed(tmp_path, "limited_container"))
    assert found["superchip_map"].status == "skip"
