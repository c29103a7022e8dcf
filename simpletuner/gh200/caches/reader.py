"""Reads an entry's file straight into an arena, without the GIL; what is not plain goes through torch.load, weights only."""

from __future__ import annotations

import io
import os
import struct
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch

from .arena import TensorArena
from .blocks import Slot
from .stored_file import FileSource, Gap, Layout, Leaf, MemorySource, blank, layout_of
from .stored_pickle import NotPlain

_GZIP = b"\x1f\x8b"
_KEPT_LAYOUTS = 4096
How = Literal["straight", "unpacked", "torch"]
Signature = tuple[int, int, int] | None
# What upstream's backends write with torch.save; text and bytes they write as they are.
WRITTEN = (dict, list, tuple, torch.Tensor)


class Unreadable(Exception):
    """The file changed, vanished or was cut while it was read, or holds nothing that can be held."""


@dataclass(frozen=True, slots=True)
class Read:
    """An entry in an arena: a Slot for each tensor; or, read by torch, the value itself and no slots yet."""

    value: Any
    slots: tuple[Slot, ...]
    signature: Signature
    bytes: int
    how: How


def signature_of(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_mtime_ns, found.st_size, found.st_ino


class EntryReader:
    """Remembers the layouts it has seen: most files of a cache differ in nothing but the values of their tensors."""

    def __init__(self) -> None:
        self._layouts: OrderedDict[int, Layout] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, path: str, arena: TensorArena, *, compressed: bool = False) -> Read:
        """Raises Unreadable, OSError or ArenaFull; nothing of the arena is taken then."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            before = os.fstat(descriptor)
            value, slots, how = self._taken(descriptor, before.st_size, arena, compressed)
            if signature_of(os.fstat(descriptor)) != signature_of(before):
                for slot in slots:
                    arena.release(slot)
                raise Unreadable("it changed while it was read")
            return Read(value, slots, signature_of(before), before.st_size, how)
        finally:
            os.close(descriptor)

    def _taken(self, file: int, size: int, arena: TensorArena, packed: bool) -> tuple[Any, tuple[Slot, ...], How]:
        if packed:
            return self._unpacked(file, size, arena)
        known = self._layouts.get(size)
        if known is not None and known.gaps is not None:
            found = _read_like(known, file, arena)
            if found is not None:
                return *found, "straight"
        try:
            layout = layout_of(FileSource(file, size))
        except NotPlain:
            return _through_torch(_whole(file, size)), (), "torch"
        if layout.gaps is not None:
            self._keep(layout)
        return *_read_leaves(layout, file, arena), "straight"

    def read_back(self, path: str, value: Any, arena: TensorArena) -> Read | None:
        """What a read of the file would give, made from the value that was written to it; None where that is not sure.

        The value is written again, to memory. All checksums of the file are then compared, so that nothing another rank
        wrote there, and no change of the value since, is taken for the file's content. Raises ArenaFull.
        """
        written = io.BytesIO()
        try:
            torch.save(value, written)
            content = written.getvalue()
            with open(path, "rb", buffering=0) as file:
                found = os.fstat(file.fileno())
                if not _holds(file.fileno(), found.st_size, content):
                    return None
            entry, slots, how = self._in_memory(content, arena)
        except (OSError, RuntimeError, Unreadable):
            return None
        return Read(entry, slots, signature_of(found), found.st_size, how)

    def _keep(self, layout: Layout) -> None:
        with self._lock:
            self._layouts[layout.size] = layout
            if len(self._layouts) > _KEPT_LAYOUTS:
                self._layouts.popitem(last=False)

    def _unpacked(self, file: int, size: int, arena: TensorArena) -> tuple[Any, tuple[Slot, ...], How]:
        return self._in_memory(_inflated(_whole(file, size)), arena)

    def _in_memory(self, content: bytes, arena: TensorArena) -> tuple[Any, tuple[Slot, ...], How]:
        try:
            layout = layout_of(MemorySource(content))
        except NotPlain:
            return _through_torch(content), (), "torch"
        with _Places(layout, arena) as places:
            for leaf, view in places.pairs():
                view[:] = content[leaf.start : leaf.start + leaf.span]
            return *places.filled(), "unpacked"


class _Places:
    """Reserved places for the tensors of a layout; given back unless they are all filled."""

    def __init__(self, layout: Layout, arena: TensorArena) -> None:
        self._layout, self._arena = layout, arena
        self._reserved = arena.reserve(*[leaf.span for leaf in layout.leaves])

    def __enter__(self) -> _Places:
        return self

    def __exit__(self, *_: object) -> None:
        if self._reserved:
            self._arena.give_back(self._reserved)

    def views(self) -> list[memoryview]:
        """Where the bytes of each tensor go, in the order of the file; not to be kept, or their block is never free."""
        places = [self._reserved[number] for number in self._layout.in_file]
        return [memoryview(one.buffer).cast("B")[one.offset : one.offset + one.span] for one in places]

    def pairs(self) -> Iterator[tuple[Leaf, memoryview]]:
        leaves = self._layout.leaves
        return zip((leaves[number] for number in self._layout.in_file), self.views(), strict=True)

    def filled(self) -> tuple[Any, tuple[Slot, ...]]:
        """The entry with its slots, and those by themselves."""
        slots = tuple(
            self._arena.filled(place, leaf.tensor.dtype, leaf.tensor.shape, leaf.tensor.stride)
            for leaf, place in zip(self._layout.leaves, self._reserved, strict=True)
        )
        self._reserved = []
        return _with_slots(self._layout.entry, iter(slots)), slots


def _with_slots(node: Any, slots: Iterator[Slot]) -> Any:
    kind = type(node)
    if kind is Leaf:
        return next(slots)
    if kind is dict:
        return {key: _with_slots(item, slots) for key, item in node.items()}
    return kind([_with_slots(item, slots) for item in node]) if kind in (list, tuple) else node


def _read_like(layout: Layout, file: int, arena: TensorArena) -> tuple[Any, tuple[Slot, ...]] | None:
    """One read of everything, the tensors' bytes into their places; None where the rest is not as in that layout."""
    assert layout.gaps is not None
    with _Places(layout, arena) as places:
        gaps = [bytearray(len(gap.expected)) for gap in layout.gaps]
        pieces: list[bytearray | memoryview] = [gaps[0]]
        for gap, view in zip(gaps[1:], places.views(), strict=True):
            pieces += [view, gap]
        if os.preadv(file, pieces, 0) != layout.size or not _same(gaps, layout.gaps):
            return None
        return places.filled()


def _same(found: list[bytearray], expected: tuple[Gap, ...]) -> bool:
    for text, gap in zip(found, expected, strict=True):
        blank(text, gap.blanks)
        if text != gap.expected:
            return False
    return True


def _read_leaves(layout: Layout, file: int, arena: TensorArena) -> tuple[Any, tuple[Slot, ...]]:
    with _Places(layout, arena) as places:
        for leaf, view in places.pairs():
            if os.preadv(file, [view], leaf.start) != leaf.span:
                raise Unreadable("it was cut while it was read")
        return places.filled()


def _holds(file: int, size: int, content: bytes) -> bool:
    """Whether a file is this archive, plain or compressed, by the checksums it carries."""
    if os.pread(file, 2, 0) == _GZIP:
        ending = struct.pack("<II", zlib.crc32(content), len(content) & 0xFFFFFFFF)
        return os.pread(file, 8, size - 8) == ending
    directory = int.from_bytes(content[-6:-2], "little")
    return size == len(content) and os.pread(file, size - directory, directory) == content[directory:]


def _whole(file: int, size: int) -> bytes:
    found = os.pread(file, size, 0)
    if len(found) != size:
        raise Unreadable("it was cut while it was read")
    return found


def _inflated(content: bytes) -> bytes:
    """Upstream loads what is not compressed as it is; the inflating itself does not hold the GIL."""
    if content[:2] != _GZIP:
        return content
    machine = zlib.decompressobj(wbits=31)
    try:
        # One byte more than the file says it holds: with none to spare the end of the stream is not looked at.
        found = machine.decompress(content, int.from_bytes(content[-4:], "little") + 1)
    except zlib.error as error:
        raise Unreadable(f"its compression is damaged: {error}") from error
    if not machine.eof or machine.unused_data:
        raise Unreadable("its compression is of another kind")
    return found


def _through_torch(content: bytes) -> Any:
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:
        # Whatever is wrong with it, upstream says it, in its own words, when training reads the file.
        raise Unreadable(
            f"torch.load refuses it: {str(error).splitlines()[0][:200] if str(error) else error!r}"
        ) from error
