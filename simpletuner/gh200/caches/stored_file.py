"""The file torch.save writes today, taken apart: where the bytes of each tensor lie, proved from the archive's own directory."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from .stored_pickle import NotPlain, StoredTensor, stored_entry

_END = struct.Struct("<4s4H2IH")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR = struct.Struct("<4sIQI")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_LOCAL = struct.Struct("<4s5H3I2H")
_CRC_IN_CENTRAL = 16
_DESCRIBED, _UTF8 = 0x0008, 0x0800
_SATURATED = 0xFFFFFFFF
_TAIL = 4096
_MOST_RECORDS = 256  # a directory of more is no cache entry, and one read takes at most 1024 pieces
# What torch looks at before it looks at the pickle, as today's torch writes it; the last two are younger than the rest.
_REQUIRED = {"version": b"3\n", "byteorder": b"little"}
_EXPECTED = {**_REQUIRED, ".format_version": b"1", ".storage_alignment": b"64"}
_IDENTITY = ".data/serialization_id"


class Source(Protocol):
    size: int

    def read(self, offset: int, count: int) -> bytes: ...


class FileSource:
    def __init__(self, descriptor: int, size: int) -> None:
        self.descriptor, self.size = descriptor, size

    def read(self, offset: int, count: int) -> bytes:
        return os.pread(self.descriptor, count, offset)


class MemorySource:
    def __init__(self, content: bytes) -> None:
        self.content, self.size = content, len(content)

    def read(self, offset: int, count: int) -> bytes:
        return self.content[offset : offset + count]


@dataclass(frozen=True, slots=True)
class Record:
    """A file of the archive: where its bytes lie, where its header begins, and where the directory has its checksum."""

    start: int
    size: int
    header: int
    checksum_at: int
    described: bool
    checksum: int

    @property
    def end(self) -> int:
        return self.start + self.size


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor of an entry and the bytes of the file that are its own; none where it has no elements."""

    tensor: StoredTensor
    start: int
    span: int
    checksum: int | None  # of exactly these bytes; None where the record holds more


@dataclass(frozen=True, slots=True)
class Outside:
    """The bytes around the tensors: the same in every file of this layout, but for the places that are blanked."""

    text: bytes
    sizes: tuple[int, ...]  # before the first tensor, between two of them, and after the last
    blanks: tuple[tuple[int, int], ...]

    def same(self, found: bytearray) -> bool:
        _blank(found, self.blanks)
        return found == self.text


@dataclass(frozen=True, slots=True)
class Layout:
    """`entry` has a Leaf for each tensor, in the order of `leaves`; `in_file` are the numbers of those that have bytes, in
    the order of the file. `outside` is None where a file of the same size could differ in more than its tensors' values
    without this telling.
    """

    size: int
    entry: Any
    leaves: tuple[Leaf, ...]
    in_file: tuple[int, ...]
    outside: Outside | None


def layout_of(source: Source) -> Layout:
    """NotPlain for everything but a plain entry in an undamaged file of today's format."""
    try:
        records = _records(source)
        for part, text in _EXPECTED.items():
            if (part in records or part in _REQUIRED) and _content(source, records[part]) != text:
                raise NotPlain(f"another {part}")
        entry = stored_entry(_content(source, records["data.pkl"]))
    except (KeyError, ValueError, struct.error) as error:
        raise NotPlain(f"{type(error).__name__}: {error}") from error
    leaves: list[Leaf] = []
    with_leaves = _with_leaves(entry, records, leaves)
    filled = [number for number, leaf in enumerate(leaves) if leaf.span]
    in_file = tuple(sorted(filled, key=lambda number: leaves[number].start))
    return Layout(source.size, with_leaves, tuple(leaves), in_file, _outside(source, records, leaves))


def _directory(source: Source) -> tuple[int, int, int]:
    """Where the directory is, and how many records it has; miniz and zipfile would agree on it."""
    tail_at = max(0, source.size - _TAIL)
    tail = source.read(tail_at, source.size - tail_at)
    if len(tail) < _END.size or len(tail) != source.size - tail_at:
        raise NotPlain("too short")
    at = len(tail) - _END.size
    mark, disk, first_disk, here, count, size, offset, comment = _END.unpack_from(tail, at)
    if mark != b"PK\x05\x06" or disk or first_disk or here != count or comment or _SATURATED in (size, offset):
        raise NotPlain("no plain end of an archive")
    end = source.size - _END.size
    if at >= _LOCATOR.size and tail[at - _LOCATOR.size : at - _LOCATOR.size + 4] == b"PK\x06\x07":
        locator = _LOCATOR.unpack_from(tail, at - _LOCATOR.size)
        end -= _LOCATOR.size + _END64.size
        if locator != (b"PK\x06\x07", 0, end, 1) or at < _LOCATOR.size + _END64.size:
            raise NotPlain("a 64-bit end that is not where it should be")
        end64 = _END64.unpack_from(tail, at - _LOCATOR.size - _END64.size)
        if (end64[0], *end64[4:]) != (b"PK\x06\x06", 0, 0, count, count, size, offset):
            raise NotPlain("two ends that disagree")
    if offset + size != end or not 0 < count <= _MOST_RECORDS:
        raise NotPlain("a directory that is not where it should be")
    return offset, size, count


def _records(source: Source) -> dict[str, Record]:
    offset, size, count = _directory(source)
    text = source.read(offset, size)
    found: dict[str, Record] = {}
    archive, at, reached = "", 0, 0
    for _ in range(count):
        mark, _, _, flags, method, _, _, checksum, packed, length, name_size, extra, comment, disk, _, _, header = (
            _CENTRAL.unpack_from(text, at)
        )
        name = text[at + _CENTRAL.size : at + _CENTRAL.size + name_size].decode("ascii")
        folder, _, part = name.partition("/")
        archive = archive or folder
        known = (
            part in _EXPECTED or part in ("data.pkl", _IDENTITY) or (part.startswith("data/") and part[5:].isdigit())
        )
        plain = mark == b"PK\x01\x02" and not (method or extra or comment or disk or flags & ~(_DESCRIBED | _UTF8))
        if not (known and plain and packed == length and folder == archive and part not in found):
            raise NotPlain("a record torch does not write")
        start = _start_of(source, header, name)
        if header < reached or start + length > offset:
            raise NotPlain("records that overlap")
        reached = start + length
        found[part] = Record(start, length, header, offset + at + _CRC_IN_CENTRAL, bool(flags & _DESCRIBED), checksum)
        at += _CENTRAL.size + name_size
    if at != size:
        raise NotPlain("a directory with more in it")
    return found


def _start_of(source: Source, header: int, name: str) -> int:
    local = source.read(header, _LOCAL.size + len(name))
    mark, _, flags, method, _, _, _, _, _, name_size, extra = _LOCAL.unpack_from(local)
    same = local[_LOCAL.size :] == name.encode("ascii") and name_size == len(name)
    if mark != b"PK\x03\x04" or method or not same or flags & ~(_DESCRIBED | _UTF8):
        raise NotPlain("a record whose header disagrees with the directory")
    return int(header + _LOCAL.size + name_size + extra)


def _content(source: Source, record: Record) -> bytes:
    if record.size > 1 << 20:
        raise NotPlain("a description of more than a megabyte")
    found = source.read(record.start, record.size)
    if len(found) != record.size:
        raise NotPlain("the file is cut")
    return found


def _with_leaves(node: Any, records: dict[str, Record], leaves: list[Leaf]) -> Any:
    kind = type(node)
    if kind is StoredTensor:
        leaves.append(_leaf(node, records))
        return leaves[-1]
    if kind is dict:
        return {key: _with_leaves(item, records, leaves) for key, item in node.items()}
    if kind in (list, tuple):
        return kind(_with_leaves(item, records, leaves) for item in node)
    return node


def _leaf(tensor: StoredTensor, records: dict[str, Record]) -> Leaf:
    record = records.get(f"data/{tensor.storage}")
    width = tensor.dtype.itemsize
    if record is None or record.size != tensor.elements * width:
        raise NotPlain("a storage without its bytes")
    if 0 in tensor.shape:
        return Leaf(tensor, record.start, 0, None)
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride, strict=True))
    if tensor.offset + last >= tensor.elements:
        raise NotPlain("a tensor larger than its storage")
    span = (last + 1) * width
    whole = span == record.size
    return Leaf(tensor, record.start + tensor.offset * width, span, record.checksum if whole else None)


def _outside(source: Source, records: dict[str, Record], leaves: list[Leaf]) -> Outside | None:
    """Everything but the tensors' bytes, to be compared with the next file; None where that is not everything."""
    filled = sorted((leaf.start, leaf.span) for leaf in leaves if leaf.span)
    stored = sorted((one.start, one.size) for part, one in records.items() if part.startswith("data/") and one.size)
    if filled != stored:
        return None
    all_blanks = sorted(_blanks(records))
    text = bytearray()
    sizes: list[int] = []
    blanks: list[tuple[int, int]] = []
    at = 0
    for start, span in [*filled, (source.size, 0)]:
        piece = source.read(at, start - at)
        if len(piece) != start - at:
            raise NotPlain("the file is cut")
        moved = len(text) - at
        blanks += [(first + moved, last + moved) for first, last in all_blanks if at <= first and last <= start]
        text += piece
        sizes.append(len(piece))
        at = start + span
    _blank(text, blanks)
    return Outside(bytes(text), tuple(sizes), tuple(blanks))


def _blanks(records: dict[str, Record]) -> Iterator[tuple[int, int]]:
    """The checksums of what differs from file to file: tensors, and the identity torch computes from them."""
    for part, record in records.items():
        if not part.startswith("data/") and part != _IDENTITY:
            continue
        yield record.checksum_at, record.checksum_at + 4
        if record.described:
            yield record.end + 4, record.end + 8
        if part == _IDENTITY:
            yield record.start, record.end


def _blank(text: bytearray, places: Iterable[tuple[int, int]]) -> None:
    for first, last in places:
        text[first:last] = bytes(last - first)
