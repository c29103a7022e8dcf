"""Checks of the GPUs: whether CUDA can use them, and whether they are coherent with the host."""

from __future__ import annotations

from ...memory.family import Family
from ..facts import Facts
from ..gpu import Gpu
from ..status import FAIL, PASS, SKIP, WARN, Result, gb
from .declare import NO_DEVICE, NOT_IN_ONE_POOL, Group, each_gpu

GPU = Group("gpu")
# On the page they come last.
MEASURED = Group("gpu")

CPU_NODE = "host_numa_id"
LEAST_DRIVER = 535  # older ones lack advice and prefetch with a location
GOOD_DRIVER = 570  # older ones kept file cache in HBM
LEAST_CAPABILITY = (8, 0)
HOPPER = (9, 0)
LOW_HBM, LEAST_HBM = 0.9, 0.1
NEEDS_BINDINGS = "cuda-bindings cannot be asked: {}"
NEEDS_NVML = "NVML cannot be asked: {}"


@GPU.check(
    FAIL,
    "on a GPU machine: install the NVIDIA driver, R570 or newer, until nvidia-smi lists the GPU; in a "
    "container start with --gpus all; in a batch job ask for a GPU; check CUDA_VISIBLE_DEVICES. Without one, "
    "runs use the CPU",
)
def cuda_device(facts: Facts) -> Result:
    """Is there a GPU that CUDA can use?"""
    gpus = facts.gpus
    if gpus.hung:
        fix = "the NVIDIA driver is stuck: see dmesg for Xid errors, reset the GPU or reboot"
        return Result(FAIL, f"{NO_DEVICE} answers: {gpus.problems['nvidia-smi']}", fix)
    if not gpus.devices:
        reasons = "; ".join(f"{source}: {text}" for source, text in gpus.problems.items())
        reasons = reasons or "every source answered with none"
        if gpus.kernel_driver:
            fix = "run with .venv/bin/python, or put nvidia-smi on PATH; check which devices the container or job has"
            return Result(FAIL, f"{NO_DEVICE} answers, although the NVIDIA kernel driver is loaded ({reasons})", fix)
        return Result(FAIL, f"{NO_DEVICE} ({reasons})")
    count = f"{len(gpus.devices)} x {gpus.devices[0].name}"
    if gpus.usable is not None:
        hidden = (
            f" of {len(gpus.devices)}, CUDA_VISIBLE_DEVICES={gpus.visible_devices}"
            if gpus.usable < len(gpus.devices)
            else ""
        )
        return Result(PASS, f"{count}; CUDA can use {gpus.usable}{hidden}")
    reason = gpus.problems.get("CUDA driver", "")
    if not gpus.asked_cuda:
        return Result(PASS, f"{count}, reported by {gpus.source}; CUDA itself was not queried: {reason}")
    hint = f"; CUDA_VISIBLE_DEVICES={gpus.visible_devices!r}" if gpus.visible_devices is not None else ""
    return Result(FAIL, f"{NO_DEVICE} can be used: {gpus.source} sees {count}, but {reason}{hint}")


@GPU.check(
    WARN,
    "docs/SUPERCHIPS.md has the launch lines; numactl --show, nvidia-smi topo -m and CUDA_VISIBLE_DEVICES show more",
)
def superchip_map(facts: Facts) -> Result:
    """Which GPU, CPUs and memory does each rank get?"""
    # Torch gives local rank N the device CUDA counts as N, which need not be NVML's N.
    seen = sorted(
        (gpu for gpu in facts.gpus.devices if gpu.cuda_number is not None), key=lambda gpu: gpu.cuda_number or 0
    )
    if not seen:
        return Result(SKIP, NO_DEVICE if not facts.gpus.devices else "CUDA itself was not queried")
    drawn = "; ".join(map(_drawn, seen))
    # A scheduler gave the job a GPU and the CPUs of another one, or the launcher runs under numactl.
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


def _drawn(gpu: Gpu) -> str:
    parts = [f"rank {gpu.cuda_number}: GPU {gpu.index}"]
    parts += [gpu.uuid] if gpu.uuid else []
    node = gpu.attributes.get(CPU_NODE, -1)
    parts += [f"CPU node {node}"] if node >= 0 else []
    parts += [f"HBM node {gpu.numa_node}"] if gpu.numa_node is not None else []
    return ", ".join(parts)


@GPU.check(FAIL, "none needed; run on a coherent machine for its features")
@each_gpu
def gpu_model(facts: Facts, gpu: Gpu) -> Result:
    """Is the GPU coherent with the host's memory?"""
    capability = gpu.compute_capability
    shown = f"{gpu.name}, compute capability {'.'.join(map(str, capability)) if capability else 'unknown'}"
    if capability is None:
        return Result(SKIP, shown, "install nvidia-ml-py, or run with .venv/bin/python")
    if capability < LEAST_CAPABILITY:
        return Result(FAIL, f"{shown}: no bf16 arithmetic", "use an A100, H100 or GH200, or another mixed_precision")
    family = gpu.platform.family
    if not gpu.reports_coherence:
        return Result(
            SKIP, f"{shown}: neither CUDA nor NVML was asked how it reaches memory", "run with .venv/bin/python"
        )
    if family is Family.DISCRETE:
        return Result(WARN, f"{shown}: {family}; memory of the host is reached over PCIe")
    return Result(PASS, f"{shown}: {family}") if capability >= HOPPER else Result(WARN, f"{shown}: older than Hopper")


@GPU.check(FAIL, "install driver R570 or newer")
def driver_version(facts: Facts) -> Result:
    """Is the driver new enough?"""
    text = facts.gpus.driver_version
    if not facts.gpus.devices:
        return Result(SKIP, NO_DEVICE)
    branch = (text or "").partition(".")[0]
    if not branch.isdigit():
        return Result(SKIP, "neither NVML nor nvidia-smi reports the version", "install nvidia-ml-py")
    shown = f"{text}{f', CUDA {facts.gpus.cuda_version}' if facts.gpus.cuda_version else ''}"
    if int(branch) < LEAST_DRIVER:
        return Result(FAIL, f"{shown}: memory hints need R{LEAST_DRIVER}")
    if int(branch) < GOOD_DRIVER:
        return Result(
            WARN,
            f"{shown}: before R{GOOD_DRIVER} the kernel kept file cache in HBM, and the GPU could run out of memory",
        )
    return Result(PASS, shown)


@GPU.check(WARN, "update the kernel and the driver; dmesg says whether the SMMU has ATS on")
@each_gpu
def addressing_mode(facts: Facts, gpu: Gpu) -> Result:
    """Do CPU and GPU share page tables (ATS)?"""
    if gpu.addressing_mode is None:
        reason = facts.gpus.problems.get("NVML", "this driver or GPU does not tell")
        return Result(SKIP, NEEDS_NVML.format(reason), "install nvidia-ml-py and a driver of R570 or newer")
    if gpu.addressing_mode == "ATS" or gpu.platform.family is Family.DISCRETE:
        return Result(PASS, gpu.addressing_mode)
    return Result(WARN, f"{gpu.addressing_mode}; with ATS CPU and GPU would share page tables")


@GPU.check(FAIL, "reset the GPU or reboot; if it stays, the board needs service")
@each_gpu
def c2c_links(facts: Facts, gpu: Gpu) -> Result:
    """Are all C2C links up?"""
    if not gpu.platform.coherent:
        return Result(SKIP, NOT_IN_ONE_POOL if gpu.platform.one_pool else "only a superchip has C2C links")
    if gpu.c2c_links is None and gpu.c2c_enabled is None:
        reason = facts.gpus.problems.get("NVML", "this driver or GPU does not tell")
        return Result(SKIP, NEEDS_NVML.format(reason), "install nvidia-ml-py")
    shown = f"{gpu.c2c_links_active} of {gpu.c2c_links} C2C links active"
    if gpu.c2c_enabled is False or not gpu.c2c_links_active or gpu.c2c_links_active < (gpu.c2c_links or 0):
        return Result(FAIL, f"{shown}, C2C {'off' if gpu.c2c_enabled is False else 'on'}")
    return Result(PASS, shown)


@GPU.check(FAIL, "use a Linux driver without virtualisation limits; .venv/bin/python has the cuda-bindings that ask")
@each_gpu
def managed_memory(facts: Facts, gpu: Gpu) -> Result:
    """Can managed memory be used by CPU and GPU at once?"""
    if not gpu.attributes:
        return Result(SKIP, NEEDS_BINDINGS.format(facts.gpus.problems.get("CUDA driver", "GPU hidden from CUDA")))
    if not gpu.attributes.get("managed_memory"):
        return Result(FAIL, "no managed memory: unified-memory caches stay in plain RAM")
    if not gpu.attributes.get("concurrent_managed_access"):
        return Result(FAIL, "no concurrent managed access: unified-memory caches stay in plain RAM")
    return Result(PASS, "managed, with concurrent access")


@GPU.check(WARN, "see addressing_mode; .venv/bin/python has the cuda-bindings that ask")
@each_gpu
def host_page_tables(facts: Facts, gpu: Gpu) -> Result:
    """Can the GPU reach all memory of a process?"""
    if not gpu.attributes:
        return Result(SKIP, NEEDS_BINDINGS.format(facts.gpus.problems.get("CUDA driver", "GPU hidden from CUDA")))
    if gpu.platform.family is Family.DISCRETE:
        return Result(SKIP, "only a superchip shares the host's page tables")
    names = ("pageable_memory_access", "pageable_memory_access_uses_host_page_tables")
    absent = [name for name in names if not gpu.attributes.get(name)]
    if absent:
        return Result(WARN, f"{' and '.join(absent)} off: hints work on managed memory only")
    return Result(PASS, "the GPU reads all memory of the process through the host's page tables")


@GPU.check(FAIL, "end the processes nvidia-smi shows on the GPU")
@each_gpu
def free_hbm(facts: Facts, gpu: Gpu) -> Result:
    """Is the GPU's memory free?"""
    if gpu.platform.one_pool:
        return Result(SKIP, f"{NOT_IN_ONE_POOL}; the memory checks of the host have its size")
    if not gpu.memory_bytes or gpu.memory_used_bytes is None:
        return Result(SKIP, "neither NVML nor nvidia-smi reports it", "install nvidia-ml-py")
    free = gpu.memory_bytes - gpu.memory_used_bytes
    shown = f"{gb(free)} of {gb(gpu.memory_bytes)} free"
    if free < LEAST_HBM * gpu.memory_bytes:
        return Result(FAIL, shown)
    return Result(WARN if free < LOW_HBM * gpu.memory_bytes else PASS, shown)


@MEASURED.check(WARN, "run with --bandwidth on an idle machine")
def bandwidth(facts: Facts) -> Result:
    """How fast are copies between host and GPU?"""
    return facts.bandwidth or Result(SKIP, "not asked for (--bandwidth)")


@MEASURED.check(FAIL, "run without --skip-allocation where there is a GPU")
def allocation(facts: Facts) -> Result:
    """Does managed memory work beyond HBM?"""
    if facts.one_pool:
        return Result(SKIP, f"{NOT_IN_ONE_POOL}: there is nothing beyond it")
    return facts.allocation or Result(SKIP, "not asked for (--skip-allocation)")
