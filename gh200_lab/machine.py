"""What a machine is and what it is doing: identity, GPUs, load; asked of the kernel and the driver's own tool."""

from __future__ import annotations

import functools
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any


def identity() -> dict[str, Any]:
    """What must be the same for two timings to be comparable."""
    return {
        "cpu": _field(Path("/proc/cpuinfo"), ("model name", "CPU part", "Hardware")) or platform.processor(),
        "architecture": platform.machine(),
        "cpus": os.cpu_count(),
        "ram_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "gpus": list(gpus()),
    }


@functools.cache
def gpus() -> tuple[str, ...]:
    """Names of the GPUs; none where the driver's tool is missing or does not answer."""
    done = nvidia_smi("--query-gpu=name", "--format=csv,noheader")
    if done is None or done.returncode:
        return ()
    return tuple(line.strip() for line in done.stdout.splitlines() if line.strip())


def nvidia_smi(*arguments: str) -> subprocess.CompletedProcess[str] | None:
    """Run nvidia-smi; None where there is none."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    try:
        return subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None


def load_average() -> float:
    """Processes that wanted to run during the last minute."""
    return os.getloadavg()[0]


def _field(path: Path, names: tuple[str, ...]) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return next((fields[name] for name in names if name in fields), "")
