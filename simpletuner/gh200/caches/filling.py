"""Places in an arena for the tensors of a file, filled straight from it; given back where that fails."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from .arena import TensorArena
from .blocks import Reserved, Slot
from .stored_file import Layout, Leaf, Outside


class Unreadable(Exception):
    """The file changed, vanished or was cut while it was read, or holds nothing that can be held."""


class Places:
    """Reserved places for the tensors of a layout; given back unless they are all filled."""

    def __init__(self, layout: Layout, arena: TensorArena) -> None:
        self._layout, self._arena = layout, arena
        self._reserved = arena.reserve(*[leaf.span for leaf in layout.leaves])
        # A block is not freed while somebody refers to its memory.
        self._held = [place.buffer for place in self._reserved if place.block is not None]

    def __enter__(self) -> Places:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.clear()
        if self._reserved:
            self._arena.give_back(self._reserved)

    @property
    def outside(self) -> Outside:
        assert self._layout.outside is not None
        return self._layout.outside

    def room_around(self) -> bytearray:
        return bytearray(len(self.outside.text))

    def _in_file(self) -> list[Reserved]:
        return [self._reserved[number] for number in self._layout.in_file]

    def views(self) -> list[memoryview]:
        """Where the bytes of each tensor go, in the order of the file; not to be kept, or their block is never free."""
        return [memoryview(one.buffer).cast("B")[one.offset : one.offset + one.span] for one in self._in_file()]

    def pieces(self, around: bytearray) -> list[memoryview]:
        """Where each byte of a file goes, what is around the tensors to the room for it."""
        found: list[memoryview] = []
        at, rest = 0, memoryview(around)
        for size, view in zip_longest(self.outside.sizes, self.views()):
            found.append(rest[at : at + size])
            at += size
            if view is not None:
                found.append(view)
        return found

    def addresses(self, around: bytearray) -> list[int]:
        """The same as addresses and sizes in turn."""
        found: list[int] = []
        at = ctypes.addressof(ctypes.c_char.from_buffer(around))
        for size, place in zip_longest(self.outside.sizes, self._in_file()):
            found += (at, size)
            at += size
            if place is not None and place.block is not None:
                found += (place.block.pointer + place.offset, place.span)
        return found

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
        self._held.clear()
        return _with_slots(self._layout.entry, iter(slots)), slots


def _with_slots(node: Any, slots: Iterator[Slot]) -> Any:
    kind = type(node)
    if kind is Leaf:
        return next(slots)
    if kind is dict:
        return {key: _with_slots(item, slots) for key, item in node.items()}
    return kind([_with_slots(item, slots) for item in node]) if kind in (list, tuple) else node


def read_like(layout: Layout, file: int, arena: TensorArena) -> tuple[Any, tuple[Slot, ...]] | None:
    """One read of everything, the tensors' bytes into their places; None where the rest is not as in that layout."""
    with Places(layout, arena) as places:
        around = places.room_around()
        if os.preadv(file, places.pieces(around), 0) != layout.size or not places.outside.same(around):
            return None
        return places.filled()


def read_leaves(layout: Layout, file: int, arena: TensorArena) -> tuple[Any, tuple[Slot, ...]]:
    with Places(layout, arena) as places:
        for leaf, view in places.pairs():
            if os.preadv(file, [view], leaf.start) != leaf.span:
                raise Unreadable("it was cut while it was read")
        return places.filled()
