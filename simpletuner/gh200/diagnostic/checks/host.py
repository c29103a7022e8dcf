"""Checks of the host: what the processor, the kernel and the memory limits mean for a run."""

from __future__ import annotations

from ..facts import Facts
from ..host import UNLIMITED
from ..status import FAIL, PASS, SKIP, WARN, Result, gb
from .declare import NOT_IN_ONE_POOL, Group

HOST = Group("host")

GRACE_PAGE = 65536
LEAST_AVAILABLE = 2 * 10**9
LOW_AVAILABLE = 0.25
LEAST_GROUP_BYTES = 10**9
LOW_GROUP_SHARE = 0.5
LEAST_SHM = 10**9
ONLY_GRACE = "only matters on a Grace CPU"


@HOST.check(WARN, "none needed; run on a coherent machine for its features")
def architecture(facts: Facts) -> Result:
    """Is this the processor of a coherent machine?"""
    name = facts.host.architecture
    if facts.grace:
        return Result(PASS, f"{name}, as on Grace")
    return Result(
        WARN, f"{name}: no coherent machine has it; the features work, over PCIe and without shared page tables"
    )


@HOST.check(WARN, "boot the distribution's 64k kernel")
def page_size(facts: Facts) -> Result:
    """Does the kernel use 64 KB pages?"""
    size = facts.host.page_bytes
    if not facts.grace or facts.one_pool:
        return Result(SKIP, f"{size // 1024} KB; {NOT_IN_ONE_POOL if facts.one_pool else ONLY_GRACE}")
    if size >= GRACE_PAGE:
        return Result(PASS, f"{size // 1024} KB")
    return Result(WARN, f"{size // 1024} KB pages; 64 KB are advised on Grace")


@HOST.check(WARN, "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled")
def transparent_hugepages(facts: Facts) -> Result:
    """May the kernel use huge pages?"""
    chosen = facts.host.transparent_hugepages
    if chosen is None:
        return Result(SKIP, "the kernel does not say")
    if chosen == "never":
        return Result(WARN, "never: staged datasets and caches are mapped in small pages only")
    return Result(PASS, chosen)


@HOST.check(WARN, "sudo sysctl kernel.numa_balancing=0, and in /etc/sysctl.d to keep it")
def numa_balancing(facts: Facts) -> Result:
    """Is automatic NUMA balancing off?"""
    value = facts.host.numa_balancing
    if value is None:
        return Result(SKIP, "the kernel does not say")
    if value == "0":
        return Result(PASS, "off")
    if not facts.grace:
        return Result(PASS, f"on ({value}); {ONLY_GRACE}")
    return Result(WARN, f"on ({value}): the kernel unmaps pages to see who uses them, which stalls the GPU")


@HOST.check(WARN, "boot with init_on_alloc=0")
def init_on_alloc(facts: Facts) -> Result:
    """Are new pages handed out uncleared?"""
    if not facts.grace:
        return Result(SKIP, ONLY_GRACE)
    value = facts.host.init_on_alloc
    if value == "0":
        return Result(PASS, "off")
    said = f"init_on_alloc={value}" if value else "not set on the kernel's command line, so its build decides"
    return Result(WARN, f"{said}: clearing every page before its first use slows large allocations")


@HOST.check(FAIL, "bring the node online (nvidia-persistenced, the driver's NVreg_CoherentGPUMemoryMode), see dmesg")
def memory_mode(facts: Facts) -> Result:
    """How does the GPU's memory show up: as a NUMA node, or not at all (CDMM)?"""
    mode = facts.memory_mode
    if facts.one_pool:
        return Result(SKIP, NOT_IN_ONE_POOL)
    if mode == "none":
        return Result(SKIP, "no GPU here shares its page tables with the CPU")
    if mode == "CDMM":
        text = "CDMM: the driver keeps the GPU's memory to itself, it is no NUMA node and no CPU reads it"
        return Result(PASS, f"{text}; caches are placed as with uvm_access_pattern cpu_first, whatever is set")
    if mode == "unknown":
        numbers = [node.number for node in facts.host.nodes if not node.cpus and node.total_bytes]
        text = f"nodes with memory and no CPU: {numbers or 'none'}; no source says whether they are the GPU's"
        asked = any(gpu.reports_coherence for gpu in facts.gpus.devices)
        return (
            Result(WARN, text)
            if asked
            else Result(SKIP, text, "run with .venv/bin/python, which has NVML and CUDA bindings")
        )
    sizes = {node.number: node.total_bytes for node in facts.host.nodes if not node.cpus}
    claimed = {gpu.index: gpu.numa_node for gpu in facts.gpus.devices if gpu.numa_node is not None}
    absent = [f"GPU {gpu} says node {node}" for gpu, node in claimed.items() if not sizes.get(node)]
    if absent:
        return Result(FAIL, f"{', '.join(absent)}, which is not online as a node with memory and without CPUs")
    shown = ", ".join(f"GPU {gpu} is node {node}, {gb(sizes[node])}" for gpu, node in claimed.items())
    return Result(PASS, f"NUMA: {shown}")


@HOST.check(WARN, "accelerate launch --enable_cpu_affinity, or numactl --cpunodebind=N --membind=N")
def numa_binding(facts: Facts) -> Result:
    """Does the process keep to one superchip's CPUs and memory?"""
    nodes = [node.number for node in facts.host.nodes if node.cpus]
    used = list(facts.host.cpu_nodes_used)
    if len(nodes) < 2:
        return Result(PASS, "one node with CPUs")
    if len(used) == 1:
        return Result(PASS, f"this process keeps to node {used[0]} of {nodes}")
    return Result(WARN, f"this process may run on nodes {used}: memory of another node is several times slower")


@HOST.check(FAIL, "stop other processes on the machine, or use a larger one")
def free_memory(facts: Facts) -> Result:
    """Is most of the RAM free?"""
    total, available = facts.host.cpu_memory_bytes, facts.host.cpu_available_bytes
    if not total:
        return Result(FAIL, "/proc/meminfo cannot be read", "mount /proc in the container")
    shown = f"{gb(available)} of {gb(total)} available, {gb(total - available)} used"
    if available < LEAST_AVAILABLE:
        return Result(FAIL, shown)
    return Result(WARN if available < LOW_AVAILABLE * total else PASS, shown)


@HOST.check(FAIL, "raise the job's or container's memory (docker --memory, Slurm --mem, the pod's limits.memory)")
def cgroup_memory(facts: Facts) -> Result:
    """Does a cgroup limit the memory?"""
    groups = facts.host.groups
    if not groups:
        return Result(PASS, "no limit")
    tightest = min(groups, key=lambda group: group.limit_bytes - group.used_bytes)
    limits = [limit.bytes for limit in facts.host.rooms if limit.kind == "control group"]
    available = min(limits, default=tightest.limit_bytes - tightest.used_bytes)
    limit, used = gb(tightest.limit_bytes), gb(tightest.used_bytes)
    shown = f"{tightest.name} is limited to {limit}, {used} used; a run may take {gb(available)}"
    if available < LEAST_GROUP_BYTES:
        return Result(FAIL, shown)
    total = facts.host.cpu_memory_bytes
    if tightest.limit_bytes < LOW_GROUP_SHARE * total:
        return Result(WARN, f"{shown}, of the machine's {gb(total)}")
    return Result(PASS, shown)


@HOST.check(WARN, "ulimit -l unlimited (docker: --ulimit memlock=-1)")
def memlock(facts: Facts) -> Result:
    """May processes lock memory?"""
    limit = facts.host.memlock_bytes
    if limit is None:
        return Result(SKIP, "/proc/self/limits does not say")
    if limit == UNLIMITED:
        return Result(PASS, "unlimited")
    return Result(WARN, f"{gb(limit)}: NCCL over InfiniBand locks more; pinned memory of CUDA does not count here")


@HOST.check(FAIL, "mount a larger /dev/shm (docker: --shm-size=8g)")
def dev_shm(facts: Facts) -> Result:
    """Is there shared memory for NCCL?"""
    total, free = facts.host.shm_total_bytes, facts.host.shm_free_bytes
    if not total:
        return Result(FAIL, "/dev/shm does not exist; NCCL needs it between the processes of a node")
    shown = f"{gb(free)} of {gb(total)} free"
    if (free or 0) < LEAST_SHM:
        return Result(WARN, f"{shown}; NCCL between processes of a node may need 1 GB (staged datasets do not use it)")
    return Result(PASS, shown)
