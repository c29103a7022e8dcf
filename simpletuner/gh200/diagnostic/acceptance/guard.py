"""Before anything is touched: the GPU must be nobody else's."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ...errors import GH200Error
from ..facts import Facts
from ..gpu import Gpu, run_smi, smi_rows
from ..machine import Machine
from ..status import gb

# Of HBM: an idle GPU has some of it for itself.
IDLE_SHARE = 0.1
IDLE_PERCENT = 10
FIX = "wait until it is free, end those processes, or choose another GPU with CUDA_VISIBLE_DEVICES"


class GpuBusy(GH200Error):
    """Somebody else is using the GPU; nothing was allocated."""


def reject_busy(facts: Facts, machine: Machine, uuid: str, memory: tuple[int, int]) -> None:
    """`memory` is free and total bytes of the GPU."""
    gpu = next((gpu for gpu in facts.gpus.devices if gpu.uuid == uuid), None)
    reasons = [*_others(machine, uuid), *_used(gpu, memory)]
    if reasons:
        raise GpuBusy(
            "The GPU is in use, so nothing was tried.",
            where=f"{gpu.name if gpu else 'GPU'} {uuid}",
            why="; ".join(reasons),
            fix=FIX,
        )


def _others(machine: Machine, uuid: str) -> Iterator[str]:
    """Nothing where nvidia-smi does not answer, and then the memory in use has to do."""
    for gpu, *rest in smi_rows(run_smi(machine, "--query-compute-apps=gpu_uuid,pid,used_memory")):
        if gpu == uuid and len(rest) == 2 and rest[0].isdigit() and int(rest[0]) != os.getpid():
            yield f"process {rest[0]} has {rest[1]} MiB on it"
    for gpu, *rest in smi_rows(run_smi(machine, "--query-gpu=uuid,utilization.gpu")):
        if gpu == uuid and len(rest) == 1 and rest[0].isdigit() and int(rest[0]) > IDLE_PERCENT:
            yield f"it is {rest[0]} % busy"


def _used(gpu: Gpu | None, memory: tuple[int, int]) -> Iterator[str]:
    if gpu is not None and gpu.platform.one_pool:
        return  # what the machine's other processes have is in the same pool
    free, total = memory
    used = max(total - free, (gpu.memory_used_bytes or 0) if gpu else 0)
    if used > IDLE_SHARE * total:
        yield f"{gb(used)} of {gb(total)} HBM are in use"
