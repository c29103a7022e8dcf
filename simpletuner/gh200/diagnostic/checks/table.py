"""The table of checks: what each asks, the worst it can say, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..facts import Facts
from ..result import FAIL, PASS, SKIP, WARN, Result
from . import config as of_config
from . import gpu as of_gpu
from . import host as of_host
from . import map as of_map
from . import software as of_software


@dataclass(frozen=True)
class Check:
    """`worst` is the worst status it can end with; `fix` is shown whenever it is not fine and names no other."""

    group: str
    worst: str
    ask: Callable[[Facts], Result]
    question: str
    fix: str

    @property
    def id(self) -> str:
        return self.ask.__name__


@dataclass(frozen=True)
class Finding:
    """The outcome of one check, as the report shows it."""

    id: str
    group: str
    title: str
    status: str
    message: str
    fix: str


_FREE = "stop other processes on the machine, or use a larger one"
_SYSCTL = "sudo sysctl kernel.numa_balancing=0, and in /etc/sysctl.d to keep it"
_SETUP = "scripts/setup.sh makes .venv with the locked packages"
_GROUP = "raise the job's or container's memory (docker --memory, Slurm --mem, the pod's limits.memory)"
_GPU = (
    "on a GPU machine: install the NVIDIA driver, R570 or newer, until nvidia-smi lists the GPU; in a container start "
    "with --gpus all; in a batch job ask for a GPU; check CUDA_VISIBLE_DEVICES. Without one, runs use the CPU"
)
_CUDA_TORCH = f"install a CUDA build for this platform: {_SETUP} (see requirements/fork.lock)"
_DATASET_FIT = (
    "raise memory_limit_gb where RAM allows, set in_memory.on_limit to partial, add compression for uncompressed "
    "files, or use a machine with more memory"
)

CHECKS: tuple[Check, ...] = (
    Check(
        "host", WARN, of_host.architecture, "Is this the processor of a GH200?",
        "none needed; run on a GH200 for its features",
    ),
    Check(
        "host", WARN, of_host.page_size, "Does the kernel use 64 KB pages?",
        "boot the distribution's 64k kernel",
    ),
    Check(
        "host", WARN, of_host.transparent_hugepages, "May the kernel use huge pages?",
        "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
    ),
    Check(
        "host", WARN, of_host.numa_balancing, "Is automatic NUMA balancing off?",
        _SYSCTL,
    ),
    Check(
        "host", WARN, of_host.init_on_alloc, "Are new pages handed out uncleared?",
        "boot with init_on_alloc=0",
    ),
    Check(
        "host", FAIL, of_host.memory_mode, "How does the GPU's memory show up: as a NUMA node, or not at all (CDMM)?",
        "bring the node online (nvidia-persistenced, the driver's NVreg_CoherentGPUMemoryMode), see dmesg",
    ),
    Check(
        "host", WARN, of_host.numa_binding, "Does the process keep to one superchip's CPUs and memory?",
        "accelerate launch --enable_cpu_affinity, or numactl --cpunodebind=N --membind=N",
    ),
    Check(
        "host", FAIL, of_host.free_memory, "Is most of the RAM free?",
        _FREE,
    ),
    Check(
        "host", FAIL, of_host.cgroup_memory, "Does a control group limit the memory?",
        _GROUP,
    ),
    Check(
        "host", WARN, of_host.memlock, "May processes lock memory?",
        "ulimit -l unlimited (docker: --ulimit memlock=-1)",
    ),
    Check(
        "host", FAIL, of_host.dev_shm, "Is there shared memory for NCCL?",
        "mount a larger /dev/shm (docker: --shm-size=8g)",
    ),
    Check(
        "gpu", FAIL, of_gpu.cuda_device, "Is there a GPU that CUDA can use?",
        _GPU,
    ),
    Check(
        "gpu", FAIL, of_map.superchip_map, "Which GPU, CPUs and memory does each rank get?",
        "docs/SUPERCHIPS.md has the launch lines; numactl --show, nvidia-smi topo -m and CUDA_VISIBLE_DEVICES tell more",
    ),
    Check(
        "gpu", FAIL, of_gpu.gpu_model, "Is it a GH200?",
        "none needed; run on a GH200 for its features",
    ),
    Check(
        "gpu", FAIL, of_gpu.driver_version, "Is the driver new enough?",
        "install driver R570 or newer",
    ),
    Check(
        "gpu", WARN, of_gpu.addressing_mode, "Do CPU and GPU share page tables (ATS)?",
        "update the kernel and the driver; dmesg says whether the SMMU has ATS on",
    ),
    Check(
        "gpu", FAIL, of_gpu.c2c_links, "Are all C2C links up?",
        "reset the GPU or reboot; if it stays, the board needs service",
    ),
    Check(
        "gpu", FAIL, of_gpu.managed_memory, "Can managed memory be used by CPU and GPU at once?",
        "use a Linux driver without virtualisation limits; .venv/bin/python has the cuda-bindings that ask",
    ),
    Check(
        "gpu", WARN, of_gpu.host_page_tables, "Can the GPU reach all memory of a process?",
        "see addressing_mode; .venv/bin/python has the cuda-bindings that ask",
    ),
    Check(
        "gpu", FAIL, of_gpu.free_hbm, "Is the GPU's memory free?",
        "end the processes nvidia-smi shows on the GPU",
    ),
    Check(
        "software", WARN, of_software.python_version, "Can the fork run in this Python?",
        "run with .venv/bin/python (scripts/setup.sh makes it)",
    ),
    Check(
        "software", FAIL, of_software.torch_build, "Is torch there, whole, and built for CUDA?",
        _CUDA_TORCH,
    ),
    Check(
        "software", FAIL, of_software.torch_version, "Is torch new enough for the upstream release under the fork?",
        "use the locked torch (scripts/setup.sh), on which managed_memory does by pools what a patched build does by keys; "
        "or build the patch again on a newer torch",
    ),
    Check(
        "software", WARN, of_software.beyond_hbm, "What would put torch's allocations beyond HBM: keys or pools?",
        "use the locked torch (scripts/setup.sh), or one that has the names",
    ),
    Check(
        "software", FAIL, of_software.torch_sees_gpu, "Does torch find the GPU and have code for it?",
        "a torch for CUDA 13 needs driver R580 or newer: update the driver, or install a torch for an older CUDA",
    ),
    Check(
        "software", FAIL, of_software.cuda_bindings, "Are the driver bindings there?",
        f"pip install 'cuda-bindings>=12.9'; {_SETUP}",
    ),
    Check(
        "software", FAIL, of_software.packages, "Are the packages of a run there?",
        _SETUP,
    ),
    Check(
        "software", FAIL, of_software.allocator_config, "Would torch take the allocator settings of the environment?",
        "unset the variable; stock PyTorch has no use_uvm keys, and scripts/setup_gh200_env.sh sets what a build takes",
    ),
    Check(
        "software", FAIL, of_software.gh200_environment, "Are the GH200 variables right?",
        "correct or unset the variable; docs/SETTINGS.md explains each",
    ),
    Check(
        "software", WARN, of_software.upstream_release, "Which upstream release is under the fork?",
        "build it: ./execute_gh200_rebase.sh",
    ),
    Check(
        "config", FAIL, of_config.config_settings, "Are the fork's settings right?",
        "correct these keys; docs/SETTINGS.md explains each",
    ),
    Check(
        "config", FAIL, of_config.config_preflight, "Can this training work: upstream's keys, model, buckets, disk?",
        "correct what is named; python -m simpletuner.gh200.preflight CONFIG says the same in seconds",
    ),
    Check(
        "config", FAIL, of_config.config_paths, "Are its folders and files there?",
        "create or mount them, or correct the path; relative ones start at the working directory",
    ),
    Check(
        "config", FAIL, of_config.config_datasets, "Do the in-memory datasets fit into RAM?",
        _DATASET_FIT,
    ),
    Check(
        "config", WARN, of_config.config_caches, "Do the caches fit into unified memory?",
        "free memory, or raise cache_config.memory_limit_gb",
    ),
    Check(
        "config", WARN, of_config.config_oversubscription, "Can the oversubscription ratio be reached?",
        "lower uvm_oversubscription_ratio to what RAM allows, or free memory; RAM bounds it anyway",
    ),
    Check(
        "config", FAIL, of_config.config_ramp, "Can the accumulation ramp be built?",
        "correct these settings; docs/RAMP.md explains them",
    ),
    Check(
        "config", FAIL, of_config.config_codecs, "Are the codecs installed?",
        f"pip install the package named, or use another codec; {_SETUP}",
    ),
    Check(
        "gpu", WARN, of_gpu.bandwidth, "How fast are copies between host and GPU?",
        "run with --bandwidth on an idle machine",
    ),
    Check(
        "gpu", FAIL, of_gpu.allocation, "Does managed memory work beyond HBM?",
        "run without --skip-allocation where there is a GPU",
    ),
)  # fmt: skip


def run_checks(facts: Facts, with_config: bool) -> tuple[Finding, ...]:
    """Every check, none of which can stop the others."""
    return tuple(_finding(check, facts) for check in CHECKS if with_config or check.group != "config")


def _finding(check: Check, facts: Facts) -> Finding:
    try:
        result = check.ask(facts)
    except Exception as error:  # an answer nobody has thought of must not cost the rest of the page
        result = Result(
            check.worst, f"the check itself failed: {type(error).__name__}: {error}", "report this with the JSON report"
        )
    fix = "" if result.status == PASS else result.fix or ("" if result.status == SKIP else check.fix)
    return Finding(check.id, check.group, check.question, result.status, result.message, fix)
