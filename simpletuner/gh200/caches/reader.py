"""Reads an entry's file straight into an arena, without the GIL; what is not plain goes through torch.load, weights only."""

from __future__ import annotations

import io
import os
import struct
import threading
import zlib
from collections import OrderedDict, deque
from collections.abc import Generator
from contextlib import ExitStack
from typing import Any, Literal, NamedTuple

import torch

from .arena import TensorArena
from .blocks import ArenaFull, Slot
from .bulk import Native, OpenFile, OpenFiles
from .filling import Places, Unreadable, read_leaves, read_like
from .stored_file import FileSource, Layout, MemorySource, layout_of
from .stored_pickle import NotPlain

_GZIP = b"\x1f\x8b"
_KEPT_LAYOUTS = 4096
How = Literal["straight", "unpacked", "torch"]
Signature = tuple[int, int, int] | None
# What upstream's backends write with torch.save; text and bytes they write as they are.
WRITTEN = (dict, list, tuple, torch.Tensor)


class Read(NamedTuple):
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
        # Set by whoever has a great many to read.
        self.native: Native | None = None

    def read_some(
        self, paths: list[str], arena: TensorArena, *, compressed: bool = False
    ) -> Generator[tuple[str, Read | Exception]]:
        """Each with what `read` returns or raises, in their order; ends with ArenaFull where there was no more room."""
        alike: list[Read | None] = [None] * len(paths)
        if self.native is not None and not compressed:
            alike = self._read_alike(self.native, paths, arena)
        rest = deque(zip(paths, alike, strict=True))
        try:
            while rest:
                path, found = rest.popleft()
                try:
                    yield path, found or self.read(path, arena, compressed=compressed)
                except ArenaFull as full:
                    yield path, full
                    break
                except (OSError, Unreadable) as error:
                    yield path, error
        finally:
            for slot in (slot for _, found in rest if found for slot in found.slots):
                arena.release(slot)

    def _read_alike(self, native: Native, paths: list[str], arena: TensorArena) -> list[Read | None]:
        """All whose layout has been seen before, read together; None for each of the others."""
        with OpenFiles(native, paths) as files, ExitStack() as unfilled:
            seen = files.seen()
            places = [self._places_for(file, arena) for file in seen]
            for one in filter(None, places):
                unfilled.enter_context(one)
            around = [one.room_around() if one else bytearray() for one in places]
            got = files.read([one.addresses(text) if one else [] for one, text in zip(places, around, strict=True)])
            return [
                Read(*one.filled(), file.signature, file.size, "straight")
                if file and one and count == file.size and one.outside.same(text)
                else None
                for file, one, count, text in zip(seen, places, got, around, strict=True)
            ]

    def _places_for(self, file: OpenFile | None, arena: TensorArena) -> Places | None:
        layout = self._layouts.get(file.size) if file else None
        try:
            return Places(layout, arena) if layout else None
        except ArenaFull:
            return None  # it says so when it is read by itself

    def read(self, path: str, arena: TensorArena, *, compressed: bool = False) -> Read:
        """Raises Unreadable, OSError or ArenaFull; nothing of the arena is taken then."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # Asked for before the read: what changes from here on is another file to whoever compares the two.
            before = os.fstat(descriptor)
            value, slots, how = self._taken(descriptor, before.st_size, arena, compressed)
            return Read(value, slots, signature_of(before), before.st_size, how)
        finally:
            os.close(descriptor)

    def _taken(self, file: int, size: int, arena: TensorArena, packed: bool) -> tuple[Any, tuple[Slot, ...], How]:
        if packed:
            return self._unpacked(file, size, arena)
        known = self._layouts.get(size)
        if known is not None:
            found = read_like(known, file, arena)
            if found is not None:
                return *found, "straight"
        try:
            layout = layout_of(FileSource(file, size))
        except NotPlain:
            return _through_torch(_whole(file, size)), (), "torch"
        if layout.outside is not None:
            self._keep(layout)
        return *read_leaves(layout, file, arena), "straight"

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
        with Places(layout, arena) as places:
            for leaf, view in places.pairs():
                view[:] = content[leaf.start : leaf.start + leaf.span]
            return *places.filled(), "unpacked"


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
