"""Facts about the software: the torch build, packages, allocator settings, environment, and the fork itself."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

from ..preflight.judging import UNJUDGED, judge_environment
from .machine import Machine

TORCH_SECONDS = 120.0
ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
PREFIXES = ("GH200_", "SIMPLETUNER_GH200_")
SHOWN_VARIABLES = ("ACCELERATE_MIXED_PRECISION", "CUDA_VISIBLE_DEVICES", *ALLOCATOR_VARIABLES)
PACKAGES = (
    "accelerate", "cuda-bindings", "diffusers", "lz4", "numpy", "nvidia-ml-py", "pillow", "pydantic", "python-snappy",
    "torch", "transformers", "zstandard",
)  # fmt: skip

# Upstream's folder may be the working directory: torch must be the installed one.
_TORCH_FACTS = """
import json, sys
sys.path[:] = [place for place in sys.path if place]
import torch
facts = {"version": torch.__version__, "cuda": torch.version.cuda, "available": torch.cuda.is_available()}
facts["device_count"] = torch.cuda.device_count() if facts["available"] else 0
facts["architectures"] = torch.cuda.get_arch_list() if torch.version.cuda else []
print("FACTS " + json.dumps(facts))
"""
# Importing torch accepts most bad keys and fails at the first allocation; these two calls judge them at once.
_ALLOCATOR = """
import os, sys
sys.path[:] = [place for place in sys.path if place]
import torch
judge = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
judge = judge or getattr(torch._C, "_cuda_cudaCachingAllocator_set_allocator_settings", None)
if judge is None:
    print("UNKNOWN")
else:
    judge(os.environ[sys.argv[1]])
    print("ACCEPTED")
"""


@dataclass(frozen=True)
class Torch:
    """What this interpreter's torch said of itself; `error` is the last line where it could not be imported."""

    version: str | None = None
    cuda: str | None = None
    available: bool = False
    device_count: int = 0
    architectures: tuple[str, ...] = ()
    error: str = ""


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
    problems: dict[str, str] = field(default_factory=dict)


def read_software(machine: Machine) -> Software:
    torch = _torch(machine)
    settings = {name: machine.environ[name] for name in ALLOCATOR_VARIABLES if machine.environ.get(name)}
    refused, problems = {}, {}
    if torch is not None and not torch.error:
        for name in settings:
            verdict = _refusal(machine, name)
            if verdict is None:
                problems[name] = "this torch has no call that judges allocator settings"
            elif verdict:
                refused[name] = verdict
    wrong, notes = judge_environment(machine.environ)
    fork = fork_folder(machine.package)
    release = _version_in(fork / "simpletuner/__init__.py", "__version__") if fork else None
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
        refused_allocator_settings=refused,
        environment_problems=wrong,
        environment_notes=notes,
        environment_unjudged=UNJUDGED,
        fork_folder=_shown_path(fork, machine.tree) if fork else None,
        upstream_release=release,
        upstream_verified=_verified(machine.tree / "patches/lock.json", release),
        fork_revision=_version_in(machine.tree / "gh200_rebase/__init__.py", "REVISION"),
        fork_is_current=_is_current(machine.package, fork) if fork else None,
        problems=problems,
    )


def _torch(machine: Machine) -> Torch | None:
    if not machine.importable("torch"):
        return None
    # Some allocator settings abort the import itself; they are judged on their own.
    environ = {name: value for name, value in machine.environ.items() if name not in ALLOCATOR_VARIABLES}
    ran = machine.run((sys.executable, "-c", _TORCH_FACTS), TORCH_SECONDS, environ)
    for line in ran.output.splitlines():
        if ran.code == 0 and line.startswith("FACTS "):
            facts = json.loads(line.removeprefix("FACTS "))
            return Torch(**facts | {"architectures": tuple(facts["architectures"])})
    return Torch(error=ran.problem or ran.last_line)


def _refusal(machine: Machine, variable: str) -> str | None:
    """Why torch refuses this variable's settings; empty when it takes them, None when it cannot be asked."""
    others = [name for name in ALLOCATOR_VARIABLES if name != variable]
    environ = {name: value for name, value in machine.environ.items() if name not in others}
    ran = machine.run((sys.executable, "-c", _ALLOCATOR, variable), TORCH_SECONDS, environ)
    if ran.code == 0:
        return None if "UNKNOWN" in ran.output else ""
    said = re.search(r"^\s*(?:what\(\):|\w+(?:Error|Exception):)\s*(.+)$", ran.errors, re.MULTILINE)
    return ran.problem or (said[1] if said else ran.last_line)


def fork_folder(package: Path) -> Path | None:
    """Where upstream's package is: around this one in a fork, in build/fork in the repository."""
    for folder in (package.parent, package.parent / "build/fork"):
        if (folder / "simpletuner/__init__.py").is_file():
            return folder
    return None


def _version_in(path: Path, name: str) -> str | None:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(rf"^{name}\s*=\s*[\"']?([^\"'\s]+)", text, re.MULTILINE)
    return found[1] if found else None


def _verified(lock: Path, release: str | None) -> bool | None:
    try:
        return release in json.loads(lock.read_text(encoding="utf-8"))["releases"] if release else None
    except (OSError, ValueError, KeyError):
        return None


def _is_current(package: Path, fork: Path) -> bool:
    if fork == package.parent:
        return True
    ours, theirs = package / "gh200", fork / "simpletuner/gh200"
    names = {path.relative_to(folder) for folder in (ours, theirs) for path in folder.rglob("*.py")}
    return all((theirs / name).is_file() and (ours / name).is_file() for name in names) and all(
        (ours / name).read_bytes() == (theirs / name).read_bytes() for name in names
    )


def _shown_path(path: Path, tree: Path) -> str:
    return path.relative_to(tree).as_posix() if path.is_relative_to(tree) else str(path)
