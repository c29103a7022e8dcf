"""Memory files: without a name, sealed once they are filled."""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
from collections.abc import Sequence
from typing import Any

NAME = "simpletuner-gh200"
# What a memory file is for: part of its name.
INDEX, FLAGS, DATA, MEDIA = "index", "flags", "data", "media"
IMMUTABLE = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
FIXED_SIZE = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
# From 3.13 on a mapping need not keep a second descriptor open.
_UNTRACKED: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}


def memory_file(purpose: str) -> int:
    """A new memory file that can be sealed."""
    return os.memfd_create(f"{NAME}-{purpose}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def sealed_reader(descriptor: int) -> int:
    """Seals the file and trades the writable descriptor for a read-only one: kernels before 6.7 map no other kind."""
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, IMMUTABLE)
    reader = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    os.close(descriptor)
    return reader


def map_file(descriptor: int, *, writable: bool = False) -> mmap.mmap:
    """Maps the whole file, shared."""
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    size = os.fstat(descriptor).st_size
    return mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED, prot=protection, **_UNTRACKED)


def close_all(descriptors: Sequence[int]) -> None:
    """Closes descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)
