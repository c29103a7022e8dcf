"""Codecs judge by content and name the missing package; limits are read from the system's own files."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import get_args

import pytest

from simpletuner.gh200.backends.ram.codecs import WORTH_IT, load_codec
from simpletuner.gh200.config.dataset_file import in_memory_options
from simpletuner.gh200.config.problems import SettingsError
from simpletuner.gh200.config.schema import CodecName, InMemory
from simpletuner.gh200.memory.limits import GB, Limit, memory_limits, over_limit
from simpletuner.gh200.memory.numa import nodes_without_cpus

TEXT = b"a caption that says the same thing again and again. " * 2000


@pytest.mark.parametrize("name", get_args(CodecName))
def test_every_codec_gives_back_what_it_was_given(name: str) -> None:
    codec = load_codec(name)
    assert codec is not None
    for data in (TEXT, os.urandom(100_000), b"x"):
        packed = codec.compress(data)
        back = codec.decompress(memoryview(packed), len(data))
        assert back == data and type(back) is bytes


@pytest.mark.parametrize("name", get_args(CodecName))
def test_what_is_compressed_already_is_recognised_by_its_content(name: str) -> None:
    codec = load_codec(name)
    assert codec is not None
    assert codec.ratio(TEXT) < WORTH_IT
    assert codec.ratio(zlib.compress(os.urandom(50_000))) >= WORTH_IT
    assert codec.ratio(b"") >= WORTH_IT


def test_no_codec_is_none() -> None:
    assert load_codec(None) is None


@pytest.mark.parametrize(("name", "module", "package"), [("lz4", "lz4", "lz4"), ("snappy", "snappy", "python-snappy")])
def test_a_codec_that_is_not_installed_names_its_package(name: str, module: str, package: str) -> None:
    code = f"import sys; sys.modules[{module!r}] = None\nfrom simpletuner.gh200.backends.ram.codecs import *; load_codec({name!r})"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and f"pip install {package}" in done.stderr


def system(directory: Path, cgroup: str, files: dict[str, str], available_kb: int = 90_000_000) -> dict[str, Path]:
    proc, groups = directory / "proc", directory / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: 100000000 kB\nMemFree: 1 kB\nMemAvailable: {available_kb} kB\n")
    (proc / "self/cgroup").write_text(cgroup)
    for name, text in files.items():
        (groups / name).parent.mkdir(parents=True, exist_ok=True)
        (groups / name).write_text(text)
    return {"proc": proc, "cgroup": groups, "nodes": directory / "node"}


def test_free_memory_leaves_headroom(tmp_path: Path) -> None:
    (limit,) = memory_limits(**system(tmp_path, "", {}))
    assert limit.bytes == 90_000_000 * 1024 - 8 * GB and "MemAvailable" in limit.name


def test_memory_of_a_gpu_that_is_a_numa_node_is_not_ours_to_fill(tmp_path: Path) -> None:
    nodes = tmp_path / "node"
    (nodes / "node1").mkdir(parents=True)
    (nodes / "has_cpu").write_text("0\n")
    (nodes / "has_memory").write_text("0-1\n")
    (nodes / "node1/meminfo").write_text("Node 1 MemTotal: 60000000 kB\nNode 1 MemFree: 50000000 kB\n")
    (limit,) = memory_limits(**system(tmp_path, "", {}))
    # Headroom too is a tenth of the processors' own memory.
    assert limit.bytes == (90_000_000 - 50_000_000 - 4_000_000) * 1024


def test_the_tightest_group_above_counts_and_file_cache_does_not(tmp_path: Path) -> None:
    files = {
        "memory.max": "max",
        "job/memory.max": str(20 * GB),
        "job/memory.current": str(8 * GB),
        "job/memory.stat": f"anon 1\ninactive_file {2 * GB}\nactive_file {GB}\n",
        "job/step/memory.max": str(40 * GB),
        "job/step/memory.current": "0",
    }
    tightest = memory_limits(50, **system(tmp_path, "0::/job/step\n", files))[0]
    assert "/job " in tightest.name
    assert tightest.bytes == 15 * GB - 15 * GB // 10


def test_version_one_and_a_path_that_only_the_host_knows(tmp_path: Path) -> None:
    files = {"memory/memory.limit_in_bytes": str(6 * GB), "memory/memory.usage_in_bytes": str(GB)}
    tightest = memory_limits(**system(tmp_path, "4:cpu,memory:/docker/abc\n", files))[0]
    assert tightest.bytes == 5 * GB - GB // 2


def test_version_one_without_a_limit(tmp_path: Path) -> None:
    files = {"memory/memory.limit_in_bytes": "9223372036854771712", "memory/memory.usage_in_bytes": "1"}
    assert len(memory_limits(**system(tmp_path, "4:memory:/\n", files))) == 1


def test_the_operators_own_limit_is_taken_at_its_word(tmp_path: Path) -> None:
    assert memory_limits(0.5, **system(tmp_path, "", {}))[0].bytes == GB // 2


def test_the_rejection_shows_need_limit_and_help() -> None:
    limit = Limit("operator", "what the operator says", GB)
    text = str(over_limit("photos", 3 * GB, limit, estimated=False, compressed=False))
    for part in ("photos", "3.000 GB", "1.000 GB", "raise in_memory.memory_limit_gb", '"partial"', "compression"):
        assert part in text
    system_limit = Limit("machine", "in_memory of the machine", GB)
    assert "raise the limit of the job" in str(over_limit("x", 3 * GB, system_limit, estimated=True, compressed=True))


def test_options_are_the_settings_own_whoever_hands_them_over() -> None:
    assert in_memory_options(None) == InMemory() and 1 <= InMemory().workers <= 72
    options = in_memory_options({"compression": "lz4", "num_workers": "3", "memory_limit_gb": None})
    assert options == InMemory(compression="lz4", num_workers=3) and options.workers == 3
    assert in_memory_options(options) is options


def test_every_wrong_option_is_named_at_once() -> None:
    block = {
        "compresion": "lz4",
        "num_workers": 0,
        "memory_limit_gb": -1,
        "on_limit": "stop",
        "release_after_cache": "perhaps",
    }
    with pytest.raises(SettingsError) as caught:
        in_memory_options(block)
    assert [problem.path for problem in caught.value.problems] == [
        f"in_memory.{key}" for key in sorted(block, key=_order)
    ]


def _order(key: str) -> int:
    """Unknown keys come last."""
    names = list(InMemory.model_fields)
    return names.index(key) if key in names else len(names)


def node_tree(directory: Path, cpus: dict[int, str], memory: str) -> Path:
    (directory / "has_cpu").write_text(",".join(str(node) for node in cpus))
    (directory / "has_memory").write_text(memory)
    for node, listed in cpus.items():
        (directory / f"node{node}").mkdir()
        (directory / f"node{node}/cpulist").write_text(listed)
    return directory


def test_gpu_memory_is_the_nodes_without_cpus(tmp_path: Path) -> None:
    tree = node_tree(tmp_path, {0: "0-71", 1: "72-143"}, "0-2,10")
    assert nodes_without_cpus(tree) == {2, 10}


def test_the_kernel_takes_the_policy_or_says_why_not() -> None:
    code = "from simpletuner.gh200.memory.numa import bind_thread; print(bind_thread({0}), bind_thread({63}), sep='|')"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    first, second = done.stdout.strip().split("|")
    assert first == "" or "not permitted" in first
    assert second.startswith("set_mempolicy: ")
