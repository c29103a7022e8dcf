"""Before anything is touched: the GPU must be nobody else's, and one acceptance run at a time has it."""

from __future__ import annotations

import os
import socket
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from ...errors import GH200Error
from ..facts import Facts
from ..gpu import SMI_SECONDS, Gpu
from ..machine import Machine
from ..result import gb

# Of HBM: an idle GPU has some of it for itself.
IDLE_SHARE = 0.1
IDLE_PERCENT = 10
FIX = "wait until it is free, end those processes, or choose another GPU with CUDA_VISIBLE_DEVICES"


class GpuBusy(GH200Error):
    """Somebody else is using the GPU; nothing was allocated."""


def refuse_busy(facts: Facts, machine: Machine, uuid: str, memory: tuple[int, int]) -> None:
    """`memory` is free and total bytes as CUDA tells them."""
    gpu = next((gpu for gpu in facts.gpus.devices if gpu.uuid == uuid), None)
    reasons = [*_processes(machine, uuid), *_utilization(machine, uuid), *_used(gpu, memory)]
    if reasons:
        raise GpuBusy(
            "The GPU is in use, so nothing was tried.",
            where=f"{gpu.name if gpu else 'GPU'} {uuid}",
            why="; ".join(reasons),
            fix=FIX,
        )


def _processes(machine: Machine, uuid: str) -> Iterator[str]:
    query = "--query-compute-apps=gpu_uuid,pid,used_memory"
    for gpu, pid, memory in _asked(machine, query, 3):
        if gpu == uuid and pid.isdigit() and int(pid) != os.getpid():
            yield f"process {pid} has {memory} MiB on it"


def _utilization(machine: Machine, uuid: str) -> Iterator[str]:
    for gpu, percent in _asked(machine, "--query-gpu=uuid,utilization.gpu", 2):
        if gpu == uuid and percent.isdigit() and int(percent) > IDLE_PERCENT:
            yield f"it is {percent} % busy"


def _asked(machine: Machine, query: str, cells: int) -> Iterator[list[str]]:
    """Rows of nvidia-smi; none where it does not answer, and then the memory in use has to tell."""
    ran = machine.run(("nvidia-smi", query, "--format=csv,noheader,nounits"), SMI_SECONDS, machine.environ)
    for line in ran.output.splitlines() if ran.code == 0 else ():
        row = [cell.strip() for cell in line.split(",")]
        if len(row) == cells:
            yield row


def _used(gpu: Gpu | None, memory: tuple[int, int]) -> Iterator[str]:
    free, total = memory
    used = max(total - free, (gpu.memory_used_bytes or 0) if gpu else 0)
    if used > IDLE_SHARE * total:
        yield f"{gb(used)} of {gb(total)} HBM are in use"


def mark_of(uuid: str, folder: str) -> str:
    """A name of the kernel's, no file; runs see each other that share the temporary folder, as ranks do."""
    return f"\0gh200-acceptance-{uuid}-{zlib.crc32(os.fsencode(folder)):08x}"


@contextmanager
def only_one(uuid: str) -> Iterator[None]:
    """Held by a name that the kernel forgets with this process, however it ends."""
    mark = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            mark.bind(mark_of(uuid, tempfile.gettempdir()))
        except OSError as error:
            raise GpuBusy(
                "Another acceptance run is at work on this GPU, so nothing was tried.",
                where=uuid,
                why="each would see the other's memory and time",
                fix="wait for it, or choose another GPU with CUDA_VISIBLE_DEVICES",
            ) from error
        yield
    finally:
        mark.close()
