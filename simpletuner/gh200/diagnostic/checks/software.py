"""Checks of the software: the torch build, the packages, what the environment asks for, and the fork."""

from __future__ import annotations

import re

from ..facts import Facts
from ..software import PREFIXES
from ..status import FAIL, PASS, SKIP, WARN, Result
from ..torch_build import ALLOCATOR_VARIABLES
from .declare import NO_DEVICE, NOT_IN_ONE_POOL, Group

SOFTWARE = Group("software")

LEAST_PYTHON, FIRST_TOO_NEW = (3, 12), (3, 14)
LEAST_BINDINGS = (12, 9)
NO_TORCH = "torch is not installed in this interpreter"
SETUP = "scripts/setup.sh makes .venv with the locked packages"
USE_VENV = "run with .venv/bin/python (scripts/setup.sh makes it)"
OPTIONAL_PACKAGES = ("lz4", "nvidia-ml-py", "python-snappy", "zstandard")


@SOFTWARE.check(WARN, USE_VENV)
def python_version(facts: Facts) -> Result:
    """Can the fork run in this Python?"""
    version = facts.software.python
    shown = ".".join(map(str, version))
    if LEAST_PYTHON <= version[:2] < FIRST_TOO_NEW:
        return Result(PASS, shown)
    return Result(WARN, f"{shown}: the diagnostic runs, the fork needs 3.12 or 3.13")


@SOFTWARE.check(FAIL, f"install a CUDA build for this platform: {SETUP} (see requirements/fork.lock)")
def torch_build(facts: Facts) -> Result:
    """Is torch there, whole, and built for CUDA?"""
    torch = facts.software.torch
    if torch is None:
        return Result(SKIP, NO_TORCH, USE_VENV)
    if torch.error:
        return Result(
            FAIL, f"torch cannot be imported: {torch.error}", "install it again: remove .venv and run scripts/setup.sh"
        )
    shown = f"{torch.version}, {f'CUDA {torch.cuda}' if torch.cuda else 'no CUDA'}"
    if torch.cuda:
        return Result(PASS, shown)
    if facts.grace or facts.gpus.devices:
        return Result(FAIL, f"{shown}: a CPU build, which cannot use the GPU")
    return Result(WARN, f"{shown}: a CPU build")


@SOFTWARE.check(
    FAIL,
    "use the locked torch (scripts/setup.sh), on which managed_memory does by pools what a patched build does "
    "by keys; or build the patch again on a newer torch",
)
def torch_version(facts: Facts) -> Result:
    """Is torch new enough for the upstream release under the fork?"""
    torch, least = facts.software.torch, facts.software.least_torch
    if torch is None or torch.error or not torch.version:
        return Result(SKIP, NO_TORCH if torch is None else "there is no torch that could tell (see torch_build)")
    shown = f"{torch.version}, a build with use_uvm keys" if torch.takes_uvm_keys else torch.version
    if least is None:
        return Result(SKIP, f"{shown}; without a built fork nobody says which one upstream needs")
    asked = f"SimpleTuner {facts.software.upstream_release} asks for {least} or newer"
    if _numbers(torch.version) < _numbers(least):
        return Result(FAIL, f"{shown}: {asked}")
    return Result(PASS, f"{shown}; {asked}")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


@SOFTWARE.check(WARN, "use the locked torch (scripts/setup.sh), or one that has the names")
def beyond_hbm(facts: Facts) -> Result:
    """What would put torch's allocations beyond HBM: keys or pools?"""
    if facts.one_pool:
        return Result(SKIP, NOT_IN_ONE_POOL)
    beyond = facts.software.beyond_hbm
    if not facts.gpus.devices:
        return Result(SKIP, f"{NO_DEVICE}; {beyond.text}")
    if beyond.possible:
        return Result(PASS, beyond.text)
    torch = facts.software.torch
    if torch is None or torch.error or not torch.cuda:
        return Result(SKIP, beyond.text)
    return Result(WARN, f"{beyond.text}: managed_memory would be rejected")


@SOFTWARE.check(
    FAIL, "a torch for CUDA 13 needs driver R580 or newer: update the driver, or install a torch for an older CUDA"
)
def torch_sees_gpu(facts: Facts) -> Result:
    """Does torch find the GPU and have code for it?"""
    torch, gpus = facts.software.torch, facts.gpus
    if torch is None or torch.error or not torch.cuda:
        return Result(SKIP, NO_TORCH if torch is None else "there is no torch that could (see torch_build)")
    if not gpus.devices:
        return Result(SKIP, "no CUDA device")
    if not torch.available:
        driver = f"driver {gpus.driver_version}, CUDA {gpus.cuda_version}"
        return Result(FAIL, f"torch, built for CUDA {torch.cuda}, finds no GPU ({driver})")
    missing = sorted(
        {f"sm_{major}{minor}" for major, minor in (gpu.compute_capability or (0, 0) for gpu in gpus.devices) if major}
        - set(torch.architectures)
    )
    if missing and not _covered(missing, torch.architectures):
        return Result(FAIL, f"torch has no code for {', '.join(missing)}; it has {', '.join(torch.architectures)}")
    return Result(PASS, f"{torch.device_count} of {len(gpus.devices)}")


def _covered(missing: list[str], architectures: tuple[str, ...]) -> bool:
    """Code runs on every later GPU of the same major number."""
    have = [int(name[3:]) for name in architectures if name.startswith("sm_") and name[3:].isdigit()]
    return all(any(own // 10 == int(name[3:]) // 10 and own <= int(name[3:]) for own in have) for name in missing)


@SOFTWARE.check(FAIL, f"pip install 'cuda-bindings>=12.9'; {SETUP}")
def cuda_bindings(facts: Facts) -> Result:
    """Are the driver bindings there?"""
    text = facts.software.packages.get("cuda-bindings")
    if text is None:
        if facts.software.torch is None:
            return Result(SKIP, f"not installed; neither is torch: {USE_VENV}")
        return Result(FAIL, "not installed: no memory hints, and unified-memory caches stay in plain RAM")
    if _numbers(text) < LEAST_BINDINGS:
        return Result(FAIL, f"{text}: advice with a location came with 12.9")
    return Result(PASS, text)


@SOFTWARE.check(FAIL, SETUP)
def packages(facts: Facts) -> Result:
    """Are the packages of a run there?"""
    found = facts.software.packages
    missing = [name for name, version in found.items() if version is None]
    if facts.software.torch is None:
        return Result(
            SKIP,
            f"{len(missing)} of {len(found)} are missing, torch among them: not the training environment",
            USE_VENV,
        )
    needed = [name for name in missing if name not in (*OPTIONAL_PACKAGES, "cuda-bindings")]
    if needed:
        return Result(FAIL, f"missing: {', '.join(needed)}")
    optional = [name for name in missing if name in OPTIONAL_PACKAGES]
    if optional:
        return Result(WARN, f"missing: {', '.join(optional)}; only a config that asks for them needs them")
    return Result(PASS, f"all {len(found)} installed")


@SOFTWARE.check(
    FAIL,
    "unset the variable; stock PyTorch has no use_uvm keys, and scripts/setup_gh200_env.sh sets what a build takes",
)
def allocator_config(facts: Facts) -> Result:
    """Would torch take the allocator settings of the environment?"""
    software = facts.software
    given = {name: software.environment[name] for name in ALLOCATOR_VARIABLES if software.environment.get(name)}
    if not given:
        return Result(PASS, "not set")
    if software.torch is None or software.torch.error:
        return Result(SKIP, f"{', '.join(given)} is set, but there is no torch that could judge it", USE_VENV)
    if software.refused_allocator_settings:
        shown = "; ".join(
            f"{name}={given.get(name, '')}: {text[:200]}" for name, text in software.refused_allocator_settings.items()
        )
        return Result(FAIL, f"this torch rejects {shown}")
    if software.problems:
        return Result(SKIP, "; ".join(f"{name}: {text}" for name, text in software.problems.items()))
    return Result(PASS, ", ".join(f"{name}={value}" for name, value in given.items()))


@SOFTWARE.check(FAIL, "correct or unset the variable; docs/SETTINGS.md explains each")
def gh200_environment(facts: Facts) -> Result:
    """Are the GH200 variables right?"""
    software = facts.software
    if software.environment_problems:
        return Result(FAIL, "; ".join(software.environment_problems))
    if software.environment_notes:
        return Result(WARN, "; ".join(software.environment_notes), "correct or unset the variable")
    ours = [f"{name}={value}" for name, value in software.environment.items() if name.startswith(PREFIXES)]
    if ours and software.environment_unjudged:
        return Result(SKIP, f"{', '.join(ours)}: not judged, {software.environment_unjudged}", USE_VENV)
    return Result(PASS, ", ".join(ours) or "nothing set: hints are off unless the config asks for them")


@SOFTWARE.check(WARN, "build it: ./execute_gh200_rebase.sh")
def upstream_release(facts: Facts) -> Result:
    """Which upstream release is under the fork?"""
    software = facts.software
    if software.upstream_release is None:
        return Result(WARN, "there is no built fork here, so nothing to train with")
    where = "this tree" if software.fork_folder == "." else software.fork_folder
    shown = f"SimpleTuner {software.upstream_release} in {where}"
    if software.fork_is_current is False:
        return Result(WARN, f"{shown} was built from another state of this repository")
    if software.upstream_verified is False:
        return Result(WARN, f"{shown}: the patches were not verified on this release", "./execute_gh200_rebase.sh lock")
    return Result(PASS, shown)
