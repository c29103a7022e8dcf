"""The staged bytes of one dataset: sealed memory files without a name, mapped read-only by all that attach."""

from __future__ import annotations

import fcntl
import hashlib
import json
import mmap
import os
import secrets
import struct
import sys
import weakref
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from ..errors import GH200Error
from .codecs import load_codec

_NAME = "simpletuner-gh200"
_LENGTH = struct.Struct("<Q")
_PLACE = struct.Struct("<IIQQQ")
_ROW = struct.Struct(_PLACE.format + "qQQ")
_IMMUTABLE = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
_FIXED_SIZE = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
# From 3.13 on a mapping need not keep a second descriptor open.
_UNTRACKED: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}


class ArenaDamaged(GH200Error):
    """What another process left behind is not the arena it announced."""


class Row(NamedTuple):
    """One staged file: where its bytes are, and what the file on disk looked like."""

    segment: int
    compressed: int
    offset: int
    stored: int
    size: int
    mtime_ns: int
    device: int
    inode: int


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


def memory_file(purpose: str) -> int:
    return os.memfd_create(f"{_NAME}-{purpose}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def _sealed_reader(descriptor: int) -> int:
    """Seals the file and trades the writable descriptor for a read-only one: kernels before 6.7 map no other kind."""
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _IMMUTABLE)
    reader = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    os.close(descriptor)
    return reader


def _map(descriptor: int, *, writable: bool = False) -> mmap.mmap | bytes:
    size = os.fstat(descriptor).st_size
    if not size:
        return b""
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    return mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED, prot=protection, **_UNTRACKED)


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


class SharedArena:
    """Files in RAM by absolute path. A forgotten file is forgotten in every attached process at once, for good."""

    def __init__(self, index: int, flags: int, segments: Sequence[int]) -> None:
        self._descriptors = (index, flags, *segments)
        # Readers hold the arena they found a file in, so nothing is unmapped under them: the last reference frees it.
        weakref.finalize(self, _close, self._descriptors)
        self._index = _map(index)
        self.digest = hashlib.blake2b(self._index, digest_size=16).hexdigest()
        (length,) = _LENGTH.unpack_from(self._index)
        header = json.loads(self._index[_LENGTH.size : _LENGTH.size + length])
        self.root: str = os.fsdecode(bytes.fromhex(header["root"]))
        self.segment_sizes: tuple[int, ...] = tuple(header["segments"])
        self._codec = load_codec(header["codec"])
        self._rows: int = _LENGTH.size + length
        self.files: int = header["files"]
        self._names = self._read_names(header["names"])
        self._by_inode: dict[tuple[int, int], int] | None = None
        self._flags = _map(flags, writable=True)
        self._maps = [_map(segment) for segment in segments]
        self._views = [memoryview(segment) for segment in self._maps]

    def _read_names(self, count: int) -> dict[str, int]:
        numbers = array("I")
        start = self._rows + self.files * _ROW.size
        names = start + count * numbers.itemsize
        numbers.frombytes(self._index[start:names])
        if not count:
            return {}
        prefix = self.root.rstrip("/") + "/"
        texts = os.fsdecode(self._index[names:]).split("\0")
        return {prefix + text: number for text, number in zip(texts, numbers, strict=True)}

    def check(self, handle: Handle) -> None:
        """Raises when this is not, completely, what the handle announces."""
        found = tuple(os.fstat(descriptor).st_size for descriptor in self._descriptors)
        wanted = (handle.size, self.files, *self.segment_sizes)
        if self.digest != handle.digest or found != wanted:
            raise ArenaDamaged(
                "The dataset in RAM is not the one its stager announced.",
                where=f"memory files of process {handle.pid}",
                why=f"digest {self.digest} for {handle.digest}, sizes {list(found)} for {list(wanted)}",
                fix="nothing to do for this run: it stages the dataset again, or reads it from disk",
            )

    def handle(self) -> Handle:
        index, flags, *segments = self._descriptors
        return Handle(os.getpid(), index, flags, tuple(segments), len(self._index), self.digest)

    def find(self, path: str) -> int | None:
        """The number of a staged file; None where it never was staged or has been forgotten."""
        number = self._names.get(path)
        return None if number is None or self._flags[number] else number

    def names(self) -> Iterator[tuple[str, int]]:
        return iter(self._names.items())

    def row(self, number: int) -> Row:
        return Row._make(_ROW.unpack_from(self._index, self._rows + number * _ROW.size))

    def read(self, number: int) -> bytes:
        segment, compressed, offset, stored, size = _PLACE.unpack_from(self._index, self._rows + number * _ROW.size)
        if not compressed:
            return self._maps[segment][offset : offset + stored]  # type: ignore[no-any-return]
        assert self._codec is not None
        return self._codec.decompress(self._views[segment][offset : offset + stored], size)

    def view(self, path: str) -> memoryview | None:
        """The bytes themselves, not a copy; None for a compressed file. By path: a call of `find` costs as much again."""
        number = self._names.get(path)
        if number is None or self._flags[number]:
            return None
        segment, compressed, offset, stored, _ = _PLACE.unpack_from(self._index, self._rows + number * _ROW.size)
        return None if compressed else self._views[segment][offset : offset + stored]

    def forget(self, number: int) -> None:
        self._flags[number] = 1  # type: ignore[index]

    def forget_file(self, device: int, inode: int) -> None:
        """Forgets a file that is about to change under another of its names (link, relative path)."""
        if self._by_inode is None:
            rows = (self.row(number) for number in range(self.files))
            self._by_inode = {(row.device, row.inode): number for number, row in enumerate(rows)}
        number = self._by_inode.get((device, inode))
        if number is not None:
            self.forget(number)


def create_arena(
    root: str, codec: str | None, rows: Sequence[Row], names: Sequence[tuple[str, int]], segments: Sequence[int]
) -> SharedArena:
    """Seals filled segments (it owns them from here on) and writes the index; names are absolute paths below root."""
    segments = [_sealed_reader(segment) for segment in segments]
    below = len(root.rstrip("/")) + 1
    header = json.dumps(
        {
            "root": os.fsencode(root).hex(),
            "codec": codec,
            "files": len(rows),
            "names": len(names),
            "segments": [os.fstat(segment).st_size for segment in segments],
            "token": secrets.token_hex(8),
        }
    ).encode()
    index, flags = memory_file("index"), memory_file("flags")
    with open(index, "wb", closefd=False) as file:
        file.write(_LENGTH.pack(len(header)) + header)
        file.writelines(_ROW.pack(*row) for row in rows)
        file.write(array("I", [number for _, number in names]).tobytes())
        file.write(b"\0".join(os.fsencode(name[below:]) for name, _ in names))
    os.ftruncate(flags, len(rows))
    fcntl.fcntl(flags, fcntl.F_ADD_SEALS, _FIXED_SIZE)
    return SharedArena(_sealed_reader(index), flags, segments)


def attach(handle: Handle) -> SharedArena:
    """Maps the arena of another process; OSError where the system refuses or that process has let go of it."""
    opened: list[int] = []
    try:
        for number in (handle.index, handle.flags, *handle.segments):
            path = f"/proc/{handle.pid}/fd/{number}"
            if not os.readlink(path).startswith(f"/memfd:{_NAME}-"):
                raise FileNotFoundError(f"{path} is no longer a dataset in RAM")
            mode = os.O_RDWR if number == handle.flags else os.O_RDONLY
            opened.append(os.open(path, mode | os.O_CLOEXEC))
    except BaseException:
        _close(opened)
        raise
    _check_index(opened[0], handle)
    arena = SharedArena(opened[0], opened[1], opened[2:])
    arena.check(handle)
    return arena


def _check_index(descriptor: int, handle: Handle) -> None:
    size = os.fstat(descriptor).st_size
    if size != handle.size:
        raise ArenaDamaged(
            "The dataset in RAM is truncated.",
            where=f"index held by process {handle.pid}",
            why=f"{size} bytes for {handle.size}",
            fix="nothing to do for this run: it stages the dataset again, or reads it from disk",
        )
