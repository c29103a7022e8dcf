"""The map of a machine's superchips: the GPU, CPU node and HBM node of each local rank, matched by UUID."""

from __future__ import annotations

from ..facts import Facts
from ..gpu import Gpu
from ..result import PASS, SKIP, WARN, Result
from .declare import NO_DEVICE

CPU_NODE = "host_numa_id"


def superchip_map(facts: Facts) -> Result:
    """Torch gives local rank N the device CUDA counts as N, which need not be NVML's N."""
    seen = sorted(
        (gpu for gpu in facts.gpus.devices if gpu.cuda_number is not None), key=lambda gpu: gpu.cuda_number or 0
    )
    if not seen:
        return Result(SKIP, NO_DEVICE if not facts.gpus.devices else "CUDA itself was not asked")
    drawn = "; ".join(map(_shown, seen))
    # A scheduler gave the job a GPU and the CPUs of another one, or numactl stands in front of the launcher.
    allowed, nodes = set(facts.host.cpu_nodes_used), {node.number for node in facts.host.nodes if node.cpus}
    wanted = {gpu.index: gpu.attributes.get(CPU_NODE, -1) for gpu in seen if gpu.coherent}
    apart = [f"GPU {index} (node {node})" for index, node in wanted.items() if node in nodes - allowed]
    if not apart or not allowed:
        return Result(PASS, drawn)
    here = ", ".join(map(str, sorted(allowed)))
    return Result(
        WARN,
        f"{drawn}. this process may only run on node {here}, not beside {', '.join(apart)}",
        "start the launcher on all CPUs of the job; in Slurm --gpus-per-node with --cpus-per-task for all ranks of a machine, and no --gpu-bind",
    )


def _shown(gpu: Gpu) -> str:
    parts = [f"rank {gpu.cuda_number}: GPU {gpu.index}"]
    parts += [gpu.uuid] if gpu.uuid else []
    node = gpu.attributes.get(CPU_NODE, -1)
    parts += [f"CPU node {node}"] if node >= 0 else []
    parts += [f"HBM node {gpu.numa_node}"] if gpu.numa_node is not None else []
    return ", ".join(parts)
