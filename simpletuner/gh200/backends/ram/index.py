"""The index of an arena: rows and names in one sealed memory file, so that a rank keeps nothing per file.

Names are sorted by their CRC-32 (Python's own hashes differ between processes), rows by the identity of their file.
"""

from __future__ import annotations

import json
import mmap
import os
import secrets
import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from zlib import crc32

_LENGTH = struct.Struct("<Q")
_PLACE = struct.Struct("<IIQQQ")
_ROW = struct.Struct(_PLACE.format + "qqQQ")
_NAME = struct.Struct("<QII")
_HASH_BYTES = array("I").itemsize
# The number of a name whose file was listed and is read from disk.
NOT_STAGED = 0xFFFFFFFF


class Row(NamedTuple):
    """One staged file: where its bytes are, and what the file on disk looked like. `blocks` is 0 where it is not compressed."""

    segment: int
    blocks: int
    offset: int
    stored: int
    size: int
    mtime_ns: int
    ctime_ns: int
    device: int
    inode: int


def write_index(
    descriptor: int,
    root: str,
    rows: Sequence[Row],
    names: Sequence[tuple[str, int]],
    header: dict[str, Any],
) -> None:
    """Names are absolute paths below root, each with the number of its file; rows are sorted by device and inode."""
    below = len(root.rstrip("/")) + 1
    encoded = ((os.fsencode(name[below:]), number) for name, number in names)
    hashed = sorted((crc32(name), name, number) for name, number in encoded)
    complete = header | {"root": os.fsencode(root).hex(), "files": len(rows), "names": len(names)}
    text = json.dumps(complete | {"token": secrets.token_hex(8)}).encode()
    with open(descriptor, "wb", closefd=False) as file:
        file.write(_LENGTH.pack(len(text)) + text)
        file.writelines(_ROW.pack(*row) for row in rows)
        array("I", [value for value, _, _ in hashed]).tofile(file)
        position = 0
        for _, name, number in hashed:
            file.write(_NAME.pack(position, len(name), number))
            position += len(name)
        file.writelines(name for _, name, _ in hashed)


class ArenaIndex:
    """Reads it in place."""

    def __init__(self, mapped: mmap.mmap | bytes) -> None:
        self._map = mapped
        (length,) = _LENGTH.unpack_from(mapped)
        self.header: dict[str, Any] = json.loads(mapped[_LENGTH.size : _LENGTH.size + length])
        self.root: str = os.fsdecode(bytes.fromhex(self.header["root"]))
        self.files: int = self.header["files"]
        self.name_count: int = self.header["names"]
        self._rows = _LENGTH.size + length
        hashes = self._rows + self.files * _ROW.size
        self._names = hashes + self.name_count * _HASH_BYTES
        self._blob = self._names + self.name_count * _NAME.size
        self._hashes = memoryview(mapped)[hashes : self._names].cast("I")

    def number(self, name: bytes) -> int | None:
        """The file of that name, given below the root; None for a name that was not listed."""
        value = crc32(name)
        position = bisect_left(self._hashes, value)
        while position < self.name_count and self._hashes[position] == value:
            found, number = self.name(position)
            if found == name:
                return number
            position += 1
        return None

    def file(self, device: int, inode: int) -> int | None:
        """The number of the file with that identity."""
        number = bisect_left(range(self.files), (device, inode), key=self._identity)
        return number if number < self.files and self._identity(number) == (device, inode) else None

    def _identity(self, number: int) -> tuple[int, int]:
        row = self.row(number)
        return row.device, row.inode

    def name(self, position: int) -> tuple[bytes, int]:
        """The name at a position, and the number of its file."""
        offset, length, number = _NAME.unpack_from(self._map, self._names + position * _NAME.size)
        start = self._blob + offset
        return self._map[start : start + length], number

    def names(self) -> Iterator[tuple[bytes, int]]:
        """All names, each with the number of its file."""
        return (self.name(position) for position in range(self.name_count))

    def row(self, number: int) -> Row:
        """One staged file."""
        return Row._make(_ROW.unpack_from(self._map, self._rows + number * _ROW.size))

    def place(self, number: int) -> tuple[int, int, int, int, int]:
        """As a plain tuple: this is on the way of every read."""
        return _PLACE.unpack_from(self._map, self._rows + number * _ROW.size)
