"""Facts about the software: the torch build, packages, allocator settings, environment, and the fork itself."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from ..preflight.settings_check import UNJUDGED, judge_environment
from .machine import Machine, found_in
from .torch_build import ALLOCATOR_VARIABLES, BeyondHbm, Torch, beyond_hbm, read_torch, rejection

PREFIXES = ("GH200_", "SIMPLETUNER_GH200_")
SHOWN_VARIABLES = ("ACCELERATE_MIXED_PRECISION", "CUDA_VISIBLE_DEVICES", *ALLOCATOR_VARIABLES)
PACKAGES = (
    "accelerate", "cuda-bindings", "diffusers", "lz4", "numpy", "nvidia-ml-py", "pillow", "pydantic", "python-snappy",
    "torch", "transformers", "zstandard",
)  # fmt: skip
# What a module sets a name to.
_VALUE = r"^{}\s*=\s*[\"']?([^\"'\s]+)"


@dataclass(frozen=True)
class Software:
    """None where there is no such thing."""

    python: tuple[int, int, int]
    executable: str
    torch: Torch | None
    packages: dict[str, str | None]
    environment: dict[str, str]
    refused_allocator_settings: dict[str, str]
    environment_problems: tuple[str, ...]
    environment_notes: tuple[str, ...]
    environment_unjudged: str
    fork_folder: str | None
    upstream_release: str | None
    upstream_verified: bool | None
    fork_revision: str | None
    fork_is_current: bool | None
    least_torch: str | None
    beyond_hbm: BeyondHbm
    problems: dict[str, str]


def read_software(machine: Machine) -> Software:
    """Read torch, packages, environment and the fork."""
    torch = read_torch(machine)
    settings = {name: machine.environ[name] for name in ALLOCATOR_VARIABLES if machine.environ.get(name)}
    rejected: dict[str, str] = {}
    problems: dict[str, str] = {}
    for name in settings if torch is not None and not torch.error else ():
        verdict, unasked = rejection(machine, name)
        rejected |= {name: verdict} if verdict else {}
        problems |= {name: unasked} if unasked else {}
    wrong, notes = judge_environment(machine.environ)
    fork = fork_directory(machine.package)
    release = found_in(fork / "simpletuner/__init__.py", _VALUE.format("__version__")) if fork else None
    shown = {
        name: value
        for name, value in sorted(machine.environ.items())
        if name.startswith(PREFIXES) or name in SHOWN_VARIABLES
    }
    return Software(
        python=machine.python,
        executable=sys.executable,
        torch=torch,
        packages={name: machine.installed(name) for name in PACKAGES},
        environment=shown,
        refused_allocator_settings=rejected,
        environment_problems=wrong,
        environment_notes=notes,
        environment_unjudged=UNJUDGED,
        fork_folder=_shown_path(fork, machine.tree) if fork else None,
        upstream_release=release,
        upstream_verified=_verified(machine.tree / "patches/lock.json", release),
        fork_revision=found_in(machine.tree / "gh200_rebase/__init__.py", _VALUE.format("REVISION")),
        fork_is_current=_is_current(machine.package, fork) if fork else None,
        least_torch=found_in(fork / "setup.py", r"[\"']torch\s*>=\s*([0-9.]+)") if fork else None,
        beyond_hbm=beyond_hbm(torch, settings, rejected),
        problems=problems,
    )


def fork_directory(package: Path) -> Path | None:
    """Where upstream's package is: around this one in a fork, in build/fork in the repository."""
    for directory in (package.parent, package.parent / "build/fork"):
        if (directory / "simpletuner/__init__.py").is_file():
            return directory
    return None


def _verified(lock: Path, release: str | None) -> bool | None:
    try:
        return release in json.loads(lock.read_text(encoding="utf-8"))["releases"] if release else None
    except (OSError, ValueError, KeyError):
        return None


def _is_current(package: Path, fork: Path) -> bool:
    return fork == package.parent or _sources(package / "gh200") == _sources(fork / "simpletuner/gh200")


def _sources(directory: Path) -> dict[Path, bytes]:
    return {path.relative_to(directory): path.read_bytes() for path in directory.rglob("*.py")}


def _shown_path(path: Path, tree: Path) -> str:
    return path.relative_to(tree).as_posix() if path.is_relative_to(tree) else str(path)
