"""The staged bytes of one directory: sealed memory files without a name, read by all that attach."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...errors import GH200Error
from .codecs import load_codec
from .index import NOT_STAGED, ArenaIndex, Row, write_index
from .memory_files import DATA, FIXED_SIZE, FLAGS, INDEX, NAME, close_all, map_file, memory_file, sealed_reader

BLOCK_LENGTH = struct.Struct("<I")


class ArenaDamaged(GH200Error):
    """What another process left behind is not the arena it announced."""


@dataclass(frozen=True)
class Handle:
    """What another process of the same user needs to attach; plain enough for JSON and pickle."""

    pid: int
    index: int
    flags: int
    segments: tuple[int, ...]
    token: str

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "segments": list(self.segments)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Handle:
        """The inverse of `as_dict`."""
        return cls(**{**data, "segments": tuple(data["segments"])})


# A mapping belongs to the process, not to a run: whoever writes a file must find all there are.
_open_here: weakref.WeakSet[SharedArena] = weakref.WeakSet()


def open_here() -> list[SharedArena]:
    """All arenas that this process has mapped."""
    return list(_open_here)


class SharedArena:
    """Files in RAM by their path below a root."""

    def __init__(self, owner: int, index: int, flags: int, segments: Sequence[int]) -> None:
        self.owner = owner
        self._descriptors = (index, flags, *segments)
        # Readers hold the arena they found a file in, so nothing is closed under them: the last reference frees it.
        weakref.finalize(self, close_all, self._descriptors).atexit = False
        self.index = ArenaIndex(map_file(index))
        self.root, self.files, self.header = self.index.root, self.index.files, self.index.header
        self.token: str = self.header["token"]
        self.prefix = self.root.rstrip("/") + "/"
        # A byte per file, shared and writable: not 0 where the file is forgotten; a last one for all of them: not 0 where
        # they are compared with the disk before each read. Single stores, so without locks.
        self._flags = memoryview(map_file(flags, writable=True))
        self.segment_sizes: tuple[int, ...] = tuple(self.header["segments"])
        self._codec = load_codec(self.header["codec"])
        self._segments = tuple(segments)
        # Names whose file was found under another identity with the same content: time of change and inode.
        self.accepted: dict[int, tuple[int, int | None]] = {}
        _open_here.add(self)

    @property
    def is_owned(self) -> bool:
        """Whether this process has staged it."""
        return self.owner == os.getpid()

    def lookup(self, name: bytes) -> int | None:
        """The number of a file named below the root; None where it is not in RAM or has been forgotten."""
        number = self.index.number(name)
        if number is None or number == NOT_STAGED or self._flags[number]:
            return None
        if self._flags[self.files] and self._differs(name, number):
            self.forget(number)
            return None
        return number

    def _differs(self, name: bytes, number: int) -> bool:
        try:
            status = os.stat(self.prefix + os.fsdecode(name))
        except OSError:
            return True
        row = self.row(number)
        seen = (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        return seen != (row.size, row.mtime_ns, row.ctime_ns)

    def compare_before_reads(self) -> None:
        """In every attached process at once, for good: a process that is not attached may write to the files."""
        self._flags[self.files] = 1

    def find(self, path: str) -> int | None:
        """The number of a file by its absolute path, as `lookup`."""
        if not path.startswith(self.prefix):
            return None
        return self.lookup(os.fsencode(path[len(self.prefix) :]))

    def names(self) -> Iterator[tuple[str, int]]:
        """Of the files that were staged."""
        found = self.index.names()
        return ((self.prefix + os.fsdecode(name), number) for name, number in found if number != NOT_STAGED)

    def row(self, number: int) -> Row:
        """Where a file is, and what it looked like on disk."""
        return self.index.row(number)

    def forget(self, number: int) -> None:
        """In every attached process at once, for good."""
        self._flags[number] = 1

    def is_forgotten(self, number: int) -> bool:
        """Whether its file is read from disk again."""
        return bool(self._flags[number])

    def forget_file(self, device: int, inode: int) -> None:
        """Forgets a file that is about to change under another of its names (link, relative path)."""
        number = self.index.file(device, inode)
        if number is not None:
            self.forget(number)

    def handle(self) -> Handle:
        """What other processes attach by."""
        index, flags, *segments = self._descriptors
        return Handle(os.getpid(), index, flags, tuple(segments), self.token)

    def read(self, number: int) -> bytes:
        """The bytes of a file, decompressed."""
        segment, blocks, offset, stored, size = self.index.place(number)
        found = self._stored(self._segments[segment], offset, stored)
        return found if not blocks else self._unpacked(memoryview(found), blocks, size)

    @staticmethod
    def _stored(descriptor: int, offset: int, size: int) -> bytes:
        """Read, not mapped: a first read then costs no page fault per 4 KB. The kernel reads at most 2 GB at once."""
        end, parts = offset + size, []
        while offset < end:
            parts.append(os.pread(descriptor, end - offset, offset))
            offset += len(parts[-1])
        return b"".join(parts)

    def _unpacked(self, found: memoryview, blocks: int, size: int) -> bytes:
        assert self._codec is not None
        if blocks == 1:
            return self._codec.decompress(found, size)
        start, left, parts = blocks * BLOCK_LENGTH.size, size, []
        block = self.header["block"]
        for number in range(blocks):
            (length,) = BLOCK_LENGTH.unpack_from(found, number * BLOCK_LENGTH.size)
            parts.append(self._codec.decompress(found[start : start + length], min(block, left)))
            start, left = start + length, left - block
        return b"".join(parts)


def create_arena(
    root: str,
    codec: str | None,
    rows: Sequence[Row],
    names: Sequence[tuple[str, int]],
    segments: Sequence[int],
    more: Mapping[str, Any] | None = None,
) -> SharedArena:
    """Seals filled segments (it owns them from here on) and writes the index; names are absolute paths below root."""
    segments = [sealed_reader(segment) for segment in segments]
    header = {**(more or {}), "codec": codec, "segments": [os.fstat(segment).st_size for segment in segments]}
    index, flags = memory_file(INDEX), memory_file(FLAGS)
    write_index(index, root, rows, names, header)
    os.ftruncate(flags, len(rows) + 1)
    fcntl.fcntl(flags, fcntl.F_ADD_SEALS, FIXED_SIZE)
    return SharedArena(os.getpid(), sealed_reader(index), flags, segments)


def attach(handle: Handle) -> SharedArena:
    """Maps the arena of another process; OSError where the system rejects or that process has let go of it."""
    wanted = [(handle.index, INDEX), (handle.flags, FLAGS), *((segment, DATA) for segment in handle.segments)]
    opened: list[int] = []
    try:
        for number, purpose in wanted:
            path = f"/proc/{handle.pid}/fd/{number}"
            if not os.readlink(path).startswith(f"/memfd:{NAME}-{purpose}"):
                raise FileNotFoundError(errno.ENOENT, "no longer a dataset in RAM", path)
            opened.append(os.open(path, (os.O_RDWR if purpose == FLAGS else os.O_RDONLY) | os.O_CLOEXEC))
    except BaseException:
        close_all(opened)
        raise
    arena = SharedArena(handle.pid, opened[0], opened[1], opened[2:])
    sizes = tuple(os.fstat(descriptor).st_size for descriptor in opened[2:])
    if arena.token != handle.token or sizes != arena.segment_sizes:
        raise ArenaDamaged(
            "The dataset in RAM is not the one that was announced.",
            where=f"memory files of process {handle.pid}",
            why="that process has staged another one since",
            fix="nothing to do for this run: it reads the dataset from disk",
        )
    return arena
