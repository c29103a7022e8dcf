"""Random numbers of the device: a function of the CUDA generator's seed and offset, which are its whole state."""

from __future__ import annotations

import os
import threading

import torch

# The CPU's own stream instead, so that a run can be compared with the same run on the CPU.
DRAWS_LIKE_THE_CPU = os.environ.get("CUDA_SIM_RANDOM") == "cpu"

OFFSET_STEP = 4  # CUDA's generators count in fours
MASK = (1 << 64) - 1

_lock = threading.Lock()


def _mixed(seed: int, offset: int) -> int:
    """SplitMix64's finalizer, so that neighbouring offsets give unrelated streams."""
    value = (seed * 0x9E3779B97F4A7C15 + offset * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def cpu_generator(generator: torch.Generator | None, device: torch.device) -> torch.Generator:
    """A CPU generator for one operation; the CUDA one moves on, as after a real kernel."""
    if generator is None and DRAWS_LIKE_THE_CPU:
        return torch.default_generator
    if generator is None:
        generator = torch.cuda.default_generators[device.index]
    with _lock:
        offset = generator.get_offset()
        generator.set_offset(offset + OFFSET_STEP)
    return torch.Generator(device="cpu").manual_seed(_mixed(generator.initial_seed(), offset))
