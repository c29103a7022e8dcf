"""The index of an arena: rows, names and two hash tables in one sealed memory file, so that a rank keeps nothing per file.

Python's own hashes differ between processes; names are found by CRC-32, files by their inode, both in open tables that
are never more than half full.
"""

from __future__ import annotations

import json
import mmap
import os
import secrets
import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from zlib import crc32

_LENGTH = struct.Struct("<Q")
_PLACE = struct.Struct("<IIQQQ")
_ROW = struct.Struct(_PLACE.format + "qqQQ")
_NAME = struct.Struct("<QII")
_SLOT = array("I").itemsize
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


class Place(NamedTuple):
    """The part of a row that a read needs."""

    segment: int
    blocks: int
    offset: int
    stored: int
    size: int


def _table_size(entries: int) -> int:
    return 1 << max(1, (2 * entries).bit_length())


def _inode_hash(device: int, inode: int) -> int:
    return (inode * 0x9E3779B1 ^ device * 0x85EBCA6B) >> 7


def _filled(hashes: Iterator[int], size: int) -> array[int]:
    table = array("I", bytes(size * _SLOT))
    mask = size - 1
    for number, value in enumerate(hashes, 1):
        slot = value & mask
        while table[slot]:
            slot = (slot + 1) & mask
        table[slot] = number
    return table


def write_index(
    descriptor: int,
    root: str,
    rows: Sequence[Row],
    names: Sequence[tuple[str, int]],
    header: dict[str, Any],
) -> None:
    """Names are absolute paths below root, each with the number of its file."""
    below = len(root.rstrip("/")) + 1
    encoded = [os.fsencode(name[below:]) for name, _ in names]
    told = header | {"root": os.fsencode(root).hex(), "files": len(rows), "names": len(names)}
    text = json.dumps(told | {"token": secrets.token_hex(8)}).encode()
    text += b" " * (-len(text) % 8)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(_LENGTH.pack(len(text)) + text)
        file.writelines(_ROW.pack(*row) for row in rows)
        position = 0
        for name, (_, number) in zip(encoded, names, strict=True):
            file.write(_NAME.pack(position, len(name), number))
            position += len(name)
        _filled(map(crc32, encoded), _table_size(len(names))).tofile(file)
        _filled((_inode_hash(row.device, row.inode) for row in rows), _table_size(len(rows))).tofile(file)
        file.writelines(encoded)


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
        self._names = self._rows + self.files * _ROW.size
        tables = self._names + self.name_count * _NAME.size
        by_name, by_inode = _table_size(self.name_count), _table_size(self.files)
        inodes = tables + by_name * _SLOT
        self._blob = inodes + by_inode * _SLOT
        view = memoryview(mapped)
        self._by_name = view[tables:inodes].cast("I")
        self._by_inode = view[inodes : self._blob].cast("I")

    def number(self, name: bytes) -> int | None:
        """The file of that name, given below the root; None for a name that was not listed."""
        table, mask = self._by_name, len(self._by_name) - 1
        slot = crc32(name) & mask
        while entry := table[slot]:
            offset, length, number = _NAME.unpack_from(self._map, self._names + (entry - 1) * _NAME.size)
            start = self._blob + offset
            if length == len(name) and self._map[start : start + length] == name:
                return int(number)
            slot = (slot + 1) & mask
        return None

    def file(self, device: int, inode: int) -> int | None:
        table, mask = self._by_inode, len(self._by_inode) - 1
        slot = _inode_hash(device, inode) & mask
        while entry := table[slot]:
            row = self.row(entry - 1)
            if (row.device, row.inode) == (device, inode):
                return entry - 1
            slot = (slot + 1) & mask
        return None

    def name(self, position: int) -> tuple[bytes, int]:
        offset, length, number = _NAME.unpack_from(self._map, self._names + position * _NAME.size)
        start = self._blob + offset
        return self._map[start : start + length], number

    def names(self) -> Iterator[tuple[bytes, int]]:
        return (self.name(position) for position in range(self.name_count))

    def row(self, number: int) -> Row:
        return Row._make(_ROW.unpack_from(self._map, self._rows + number * _ROW.size))

    def place(self, number: int) -> tuple[int, int, int, int, int]:
        """As a plain tuple: this is on the way of every read."""
        return _PLACE.unpack_from(self._map, self._rows + number * _ROW.size)
