"""The torch of this interpreter: what it says of itself, what allocator settings it takes, how it goes beyond HBM."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from ..offload.torch_api import ALLOCATOR_VARIABLES, PRIVATE, PUBLIC, asks_patched_allocator
from .machine import Machine

__all__ = ["ALLOCATOR_VARIABLES", "BeyondHbm", "Torch", "beyond_hbm", "read_torch", "rejection"]
TORCH_SECONDS = 120.0
POOLS, KEYS, NOTHING = "pools", "allocator keys", "nothing"

# Upstream's directory may be the working directory: torch must be the installed one. Importing it accepts most bad allocator
# settings and fails at the first allocation; `judge` says at once, and newer releases have it under the first name.
_WITH_TORCH = """
import json, os, sys
sys.path[:] = [place for place in sys.path if place]
import torch
judge = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
judge = judge or torch._C._cuda_cudaCachingAllocator_set_allocator_settings
"""
_FACTS = """
facts = {"version": torch.__version__, "cuda": torch.version.cuda, "available": torch.cuda.is_available()}
facts["device_count"] = torch.cuda.device_count() if facts["available"] else 0
facts["architectures"] = torch.cuda.get_arch_list() if torch.version.cuda else []
private, public = json.loads(sys.argv[1])
facts["lacking"] = ["torch._C." + name for name in private if not hasattr(torch._C, name)]
facts["lacking"] += ["torch.cuda." + name for name in public if not hasattr(torch.cuda, name)]
try:
    judge("use_uvm:True")
    facts["takes_uvm_keys"] = True
except Exception:
    facts["takes_uvm_keys"] = False
print("FACTS " + json.dumps(facts))
"""


@dataclass(frozen=True)
class Torch:
    """What this interpreter's torch said of itself; `error` is the last line where it could not be imported.

    `lacking` are the names our pools would need, `takes_uvm_keys` is true of the owner's patched build.
    """

    version: str | None = None
    cuda: str | None = None
    available: bool = False
    device_count: int = 0
    architectures: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    takes_uvm_keys: bool = False
    error: str = ""


@dataclass(frozen=True)
class BeyondHbm:
    """What would put torch's own allocations into managed memory: `pools`, `allocator keys` or `nothing`."""

    by: str
    text: str

    @property
    def possible(self) -> bool:
        """Whether anything would."""
        return self.by != NOTHING


def read_torch(machine: Machine) -> Torch | None:
    """Import torch in a child process; None where there is none."""
    if not machine.importable("torch"):
        return None
    # Some allocator settings abort the import itself; they are judged on their own.
    environ = {name: value for name, value in machine.environ.items() if name not in ALLOCATOR_VARIABLES}
    ran = machine.run(
        (sys.executable, "-c", _WITH_TORCH + _FACTS, json.dumps((PRIVATE, PUBLIC))), TORCH_SECONDS, environ
    )
    line = ran.marked("FACTS ")
    if line is None:
        return Torch(error=ran.problem or ran.last_line)
    facts = json.loads(line)
    return Torch(**facts | {name: tuple(facts.get(name, ())) for name in ("architectures", "lacking")})


def rejection(machine: Machine, variable: str) -> tuple[str, str]:
    """Why torch rejects this variable's settings, empty when it takes them; and why it could not be asked."""
    environ = {name: value for name, value in machine.environ.items() if name not in ALLOCATOR_VARIABLES}
    environ[variable] = machine.environ[variable]
    judged = f"{_WITH_TORCH}judge(os.environ[{variable!r}])"
    ran = machine.run((sys.executable, "-c", judged), TORCH_SECONDS, environ)
    if ran.code == 0 or ran.problem:
        return "", ran.problem
    said = re.search(r"^\s*(?:what\(\):|\w+(?:Error|Exception):)\s*(.+)$", ran.errors, re.MULTILINE)
    return said[1] if said else ran.last_line, ""


def beyond_hbm(torch: Torch | None, settings: Mapping[str, str], rejected: Mapping[str, str]) -> BeyondHbm:
    """`settings` are the allocator settings of the environment, `rejected` those that this torch does not take."""
    if torch is None or torch.error:
        return BeyondHbm(NOTHING, "there is no torch that could")
    asked = [name for name, value in settings.items() if asks_patched_allocator(value)]
    if torch.takes_uvm_keys and asked and not any(name in rejected for name in asked):
        return BeyondHbm(
            KEYS, f"torch {torch.version} is a build with use_uvm keys, {asked[0]} sets them: its own allocator"
        )
    stock = f"pools of torch {torch.version}, where gh200_optimizations.managed_memory asks for them"
    unset = "torch has use_uvm keys that are not set (source scripts/setup_gh200_env.sh sets them)"
    if torch.lacking:
        lacking = f"torch {torch.version} has no {', '.join(torch.lacking)}"
        return BeyondHbm(NOTHING, f"{lacking}; {unset}" if torch.takes_uvm_keys else lacking)
    return BeyondHbm(POOLS, f"{stock}; {unset}" if torch.takes_uvm_keys else stock)
