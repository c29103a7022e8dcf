"""The staged bytes of one folder: sealed memory files without a name, mapped read-only by all that attach."""

from __future__ import annotations

import fcntl
import os
import struct
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import GH200Error
from .codecs import load_codec
from .index import ArenaIndex, Row, write_index
from .mapping import FIXED_SIZE, NAME, SegmentMap, close_all, map_file, memory_file, sealed_reader
from .validity import Reason, Validity, validity_bytes

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
    size: int
    digest: str

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "segments": list(self.segments)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Handle:
        return cls(**{**data, "segments": tuple(data["segments"])})


class ArenaNames:
    """Which files an arena holds and which of them are forgotten, without their bytes."""

    def __init__(self, index: int, flags: int, more: Sequence[int] = ()) -> None:
        self._descriptors = (index, flags, *more)
        # Readers hold the arena they found a file in, so nothing is unmapped under them: the last reference frees it.
        weakref.finalize(self, close_all, self._descriptors)
        self.index = ArenaIndex(map_file(index))
        self.digest = self.index.digest()
        self.root, self.files = self.index.root, self.index.files
        self.header = self.index.header
        self.prefix = self.root.rstrip("/") + "/"
        self.validity = Validity(map_file(flags, writable=True), self.files, self.index.name_count)
        self._flags = self.validity.flags

    def lookup(self, name: bytes) -> int | None:
        """The number of a file named below the root; None where it never was staged or has been forgotten."""
        number = self.index.number(name)
        return None if number is None or self._flags[number] else number

    def find(self, path: str) -> int | None:
        if not path.startswith(self.prefix):
            return None
        return self.lookup(os.fsencode(path[len(self.prefix) :]))

    def names(self) -> Iterator[tuple[str, int]]:
        return ((self.prefix + os.fsdecode(name), number) for name, number in self.index.names())

    def row(self, number: int) -> Row:
        return self.index.row(number)

    def forget(self, number: int, reason: Reason = Reason.WRITTEN) -> None:
        """In every attached process at once, for good."""
        self.validity.forget(number, reason)

    def forget_file(self, device: int, inode: int) -> None:
        """Forgets a file that is about to change under another of its names (link, relative path)."""
        number = self.index.file(device, inode)
        if number is not None:
            self.forget(number)


# A mapping belongs to the process, not to a run: whoever writes a file must find all there are.
_open_here: weakref.WeakSet[SharedArena] = weakref.WeakSet()


def open_here() -> list[SharedArena]:
    return list(_open_here)


class SharedArena(ArenaNames):
    """Files in RAM by their path below a root."""

    def __init__(self, index: int, flags: int, segments: Sequence[int]) -> None:
        super().__init__(index, flags, segments)
        self.segment_sizes: tuple[int, ...] = tuple(self.header["segments"])
        self._codec = load_codec(self.header["codec"])
        self._maps = [SegmentMap(segment) for segment in segments]
        self._views = [segment.view for segment in self._maps]
        # Changed files that this process has told of.
        self.reported: set[int] = set()
        _open_here.add(self)

    @property
    def codec(self) -> str | None:
        return self._codec.name if self._codec else None

    def check(self, handle: Handle) -> None:
        """Raises when this is not, completely, what the handle announces."""
        found = tuple(os.fstat(descriptor).st_size for descriptor in self._descriptors)
        wanted = (handle.size, validity_bytes(self.files, self.index.name_count), *self.segment_sizes)
        if self.digest != handle.digest or found != wanted:
            raise ArenaDamaged(
                "The dataset in RAM is not the one its stager announced.",
                where=f"memory files of process {handle.pid}",
                why=f"digest {self.digest} for {handle.digest}, sizes {list(found)} for {list(wanted)}",
                fix="nothing to do for this run: it reads the dataset from disk",
            )

    def handle(self) -> Handle:
        index, flags, *segments = self._descriptors
        return Handle(os.getpid(), index, flags, tuple(segments), len(self.index), self.digest)

    def read(self, number: int) -> bytes:
        segment, blocks, offset, stored, size = self.index.place(number)
        found = self._views[segment][offset : offset + stored]
        return bytes(found) if not blocks else self._unpacked(found, blocks, size)

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

    def view_of(self, number: int) -> memoryview | None:
        """The bytes themselves, not a copy; None for a compressed file."""
        segment, blocks, offset, stored, _ = self.index.place(number)
        return None if blocks else self._views[segment][offset : offset + stored]

    def view(self, path: str) -> memoryview | None:
        number = self.find(path)
        return None if number is None else self.view_of(number)

    def huge_steps(self) -> list[tuple[int, int]]:
        return [(number, step) for number, part in enumerate(self._maps) for step in range(part.huge_steps)]

    def collapse(self, segment: int, step: int) -> str:
        """Makes huge pages, where the system has them; returns what stopped it."""
        return self._maps[segment].collapse(step)


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
    index, flags = memory_file("index"), memory_file("flags")
    write_index(index, root, rows, names, header)
    os.ftruncate(flags, validity_bytes(len(rows), len(names)))
    fcntl.fcntl(flags, fcntl.F_ADD_SEALS, FIXED_SIZE)
    arena = SharedArena(sealed_reader(index), flags, segments)
    arena.validity.start([row.ctime_ns for row in rows])
    return arena


def _opened(handle: Handle, numbers: Sequence[int]) -> list[int]:
    opened: list[int] = []
    try:
        for number in numbers:
            path = f"/proc/{handle.pid}/fd/{number}"
            if not os.readlink(path).startswith(f"/memfd:{NAME}-"):
                raise FileNotFoundError(f"{path} is no longer a dataset in RAM")
            mode = os.O_RDWR if number == handle.flags else os.O_RDONLY
            opened.append(os.open(path, mode | os.O_CLOEXEC))
        _check_index(opened[0], handle)
    except BaseException:
        close_all(opened)
        raise
    return opened


def attach(handle: Handle) -> SharedArena:
    """Maps the arena of another process; OSError where the system refuses or that process has let go of it."""
    opened = _opened(handle, (handle.index, handle.flags, *handle.segments))
    arena = SharedArena(opened[0], opened[1], opened[2:])
    arena.check(handle)
    return arena


def attach_names(handle: Handle) -> ArenaNames:
    """As much of it as is needed to forget a file."""
    index, flags = _opened(handle, (handle.index, handle.flags))
    return ArenaNames(index, flags)


def _check_index(descriptor: int, handle: Handle) -> None:
    size = os.fstat(descriptor).st_size
    if size != handle.size:
        raise ArenaDamaged(
            "The dataset in RAM is truncated.",
            where=f"index held by process {handle.pid}",
            why=f"{size} bytes for {handle.size}",
            fix="nothing to do for this run: it reads the dataset from disk",
        )
