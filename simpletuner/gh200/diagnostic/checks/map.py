"""The map of a machine's superchips: the GPU, CPU node and HBM node of each local rank, matched by UUID."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ..facts import Facts
from ..gpu import Gpu
from ..result import FAIL, PASS, SKIP, WARN, Result
from .declare import NO_DEVICE

CPU_NODE = "host_numa_id"
# One CPU half has one GPU there; on a GB200 it has two.
SINGLE = "GH200"


def superchip_map(facts: Facts) -> Result:
    """Torch gives local rank N the device CUDA counts as N, which need not be NVML's N."""
    seen = sorted(
        (gpu for gpu in facts.gpus.devices if gpu.cuda_number is not None), key=lambda gpu: gpu.cuda_number or 0
    )
    if not seen:
        return Result(SKIP, NO_DEVICE if not facts.gpus.devices else "CUDA itself was not asked")
    drawn = "; ".join(map(_shown, seen))
    # Two lines would hide the worse one: all that is wrong is said.
    found = [*_same_device_twice(seen), *_shared_halves(seen), *_cpus_elsewhere(facts, seen)]
    if not found:
        return Result(PASS, drawn)
    status = FAIL if any(status == FAIL for status, _, _ in found) else WARN
    return Result(status, f"{drawn}. {'. '.join(text for _, text, _ in found)}", "; ".join(fix for *_, fix in found))


def _shown(gpu: Gpu) -> str:
    parts = [f"rank {gpu.cuda_number}: GPU {gpu.index}"]
    parts += [gpu.uuid] if gpu.uuid else []
    node = gpu.attributes.get(CPU_NODE, -1)
    parts += [f"CPU node {node}"] if node >= 0 else []
    parts += [f"HBM node {gpu.numa_node}"] if gpu.numa_node is not None else []
    return ", ".join(parts)


def _same_device_twice(seen: list[Gpu]) -> Iterator[tuple[str, str, str]]:
    for uuid, times in Counter(gpu.uuid for gpu in seen if gpu.uuid).items():
        if times > 1:
            fix = "name every device once in CUDA_VISIBLE_DEVICES"
            yield FAIL, f"CUDA lists {uuid} {times} times: that many ranks would share it", fix


def _shared_halves(seen: list[Gpu]) -> Iterator[tuple[str, str, str]]:
    halves = Counter(gpu.attributes.get(CPU_NODE, -1) for gpu in seen if gpu.coherent and SINGLE in gpu.name)
    for node, times in halves.items():
        if node >= 0 and times > 1:
            fix = "report the machine's topology (nvidia-smi topo -m) to its maker"
            yield WARN, f"{times} superchips say that CPU node {node} is theirs", fix


def _cpus_elsewhere(facts: Facts, seen: list[Gpu]) -> Iterator[tuple[str, str, str]]:
    """A scheduler gave the job a GPU and the CPUs of another one, or numactl stands in front of the launcher."""
    allowed, nodes = set(facts.host.cpu_nodes_used), {node.number for node in facts.host.nodes if node.cpus}
    wanted = {gpu.index: gpu.attributes.get(CPU_NODE, -1) for gpu in seen if gpu.coherent}
    apart = [f"GPU {index} (node {node})" for index, node in wanted.items() if node in nodes - allowed]
    if apart and allowed:
        text = (
            f"this process may only run on node {', '.join(map(str, sorted(allowed)))}, not beside {', '.join(apart)}"
        )
        yield (
            WARN,
            text,
            "start the launcher on all CPUs of the job; in Slurm --gpus-per-node with --cpus-per-task for all ranks of a machine, and no --gpu-bind",
        )
