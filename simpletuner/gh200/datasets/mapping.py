"""Memory files and their mappings.

Segments are mapped at the boundary of a huge page and, in the background, collapsed into huge pages: the first read of a
file then costs no page fault per 4 KB, which is what made it slower than a read of the page cache.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NAME = "simpletuner-gh200"
# What a memory file is for: part of its name.
INDEX, FLAGS, DATA, MEDIA = "index", "flags", "data", "media"
IMMUTABLE = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
FIXED_SIZE = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
# From 3.13 on a mapping need not keep a second descriptor open.
_UNTRACKED: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
_HUGE_PAGE = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
# Larger ones (512 MB with pages of 64 KB) are as good as never filled, and nobody needs them there.
_LARGEST_HUGE_PAGE = 32 << 20
_COLLAPSE, _COLLAPSED_AT_ONCE = 25, 16
_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000
_FAILED = ctypes.c_void_p(-1).value


def memory_file(purpose: str) -> int:
    return os.memfd_create(f"{NAME}-{purpose}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def sealed_reader(descriptor: int) -> int:
    """Seals the file and trades the writable descriptor for a read-only one: kernels before 6.7 map no other kind."""
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, IMMUTABLE)
    reader = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    os.close(descriptor)
    return reader


def map_file(descriptor: int, *, writable: bool = False) -> mmap.mmap:
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    size = os.fstat(descriptor).st_size
    return mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED, prot=protection, **_UNTRACKED)


def close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def huge_page() -> int:
    """Its size; 0 where the system has none that would help."""
    try:
        size = int(_HUGE_PAGE.read_text())
    except (OSError, ValueError):
        return 0
    return size if mmap.PAGESIZE < size <= _LARGEST_HUGE_PAGE else 0


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


class SegmentMap:
    """A segment, read-only. Views keep the mapping alive; the last of them frees it."""

    def __init__(self, descriptor: int) -> None:
        self.size = os.fstat(descriptor).st_size
        self.view = memoryview(b"")
        self._address = 0
        if self.size:
            self._map(descriptor)

    def _map(self, descriptor: int) -> None:
        libc, page = _libc(), huge_page() or mmap.PAGESIZE
        # Room for the segment wherever the boundary falls; the mapping itself then replaces a part of it.
        room = self.size + page
        base = self._checked(libc.mmap(None, room, 0, mmap.MAP_PRIVATE | mmap.MAP_ANON | _MAP_NORESERVE, -1, 0))
        start = -(-base // page) * page
        flags = mmap.MAP_SHARED | _MAP_FIXED
        mapped = libc.mmap(start, self.size, mmap.PROT_READ, flags, descriptor, 0)
        if mapped == _FAILED:
            error = ctypes.get_errno()
            libc.munmap(base, room)
            raise OSError(error, os.strerror(error))
        memory = (ctypes.c_char * self.size).from_address(start)
        weakref.finalize(memory, libc.munmap, base, room).atexit = False
        self._address = start
        self.view = memoryview(memory).cast("B").toreadonly()

    @staticmethod
    def _checked(address: int) -> int:
        if address == _FAILED:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        return address

    @property
    def huge_steps(self) -> int:
        """How many calls of `collapse` make huge pages of all that fill one."""
        page = huge_page()
        return -(-(self.size // page) // _COLLAPSED_AT_ONCE) if page else 0

    def collapse(self, number: int) -> str:
        """Returns what stopped it, empty when nothing did."""
        page = huge_page()
        step = page * _COLLAPSED_AT_ONCE
        offset = number * step
        size = min(step, self.size // page * page - offset)
        failed = _libc().madvise(self._address + offset, size, _COLLAPSE)
        return os.strerror(ctypes.get_errno()) if failed else ""
