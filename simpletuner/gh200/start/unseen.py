"""The samples of a bucket that are still unseen: drawn from and retired at a cost that does not grow with the bucket.

Upstream keeps them in lists, which it compares and copies whole for every batch. Here the same sequence is answered by position:
blocks of bits, one for each sample that is left, and a tree of their counts. Bits are plain integers, so nothing that the
garbage collector must go through is made for a batch.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, SupportsIndex, overload

BLOCK = 512
_ALL = (1 << BLOCK) - 1


class CountedList(list[Any]):
    """A bucket's list that knows whether it was changed; to everybody else a list."""

    changes = 0

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return list, (list(self),)


def _counting(name: str) -> Callable[..., Any]:
    plain = getattr(list, name)

    def method(self: CountedList, *given: Any, **named: Any) -> Any:
        self.changes += 1
        return plain(self, *given, **named)

    return method


for _name in (
    *("append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse"),
    *("__setitem__", "__delitem__", "__iadd__", "__imul__"),
):
    setattr(CountedList, _name, _counting(_name))


class UnseenIndex:
    """Stands in for upstream's index of one bucket: `is_current` and `consume` are what upstream calls."""

    def __init__(
        self, source: list[Any], seen_images: object, positions: Sequence[int], path_of: Callable[[Any], str]
    ) -> None:
        self._source, self._seen_images, self._path_of = source, seen_images, path_of
        self._changes = getattr(source, "changes", None)
        self._snapshot = list(source)
        count = len(positions)
        # Where nothing has been seen yet, positions are ranks.
        self._positions: Sequence[int] = range(count) if count == len(source) else array("Q", positions)
        self._blocks = [_ALL] * (count // BLOCK) + [(1 << count % BLOCK) - 1]
        self._tree = _tree([block.bit_count() for block in self._blocks])
        self._left = count
        self.retired = array("Q")
        self._pending: dict[Any, int | list[int]] = {}
        self._pending.update(zip(self._unseen(), range(count), strict=True))
        if len(self._pending) < count:
            self._pending.clear()
            for rank, image in enumerate(self._unseen()):
                self._expect(image, rank)

    def _unseen(self) -> Iterator[Any]:
        return map(self._snapshot.__getitem__, self._positions)

    def _expect(self, image: Any, rank: int) -> None:
        """One that stands in the bucket more than once has all its ranks, in order."""
        known = self._pending.setdefault(image, rank)
        if known is rank:
            return
        if isinstance(known, list):
            known.append(rank)
        else:
            self._pending[image] = [known, rank]

    def is_current(self, source: list[Any], seen_images: object) -> bool:
        if self._seen_images is not seen_images:
            return False
        if source is self._source and self._changes is not None and self._changes == getattr(source, "changes", None):
            return True
        if self._snapshot != source:
            return False
        self._source, self._changes = source, getattr(source, "changes", None)
        return True

    def consume(self, image_path: Any) -> None:
        """Its earliest unseen occurrence is unseen no more."""
        ranks = self._pending.get(image_path)
        if ranks is None:
            return
        if isinstance(ranks, int):
            rank = ranks
            del self._pending[image_path]
        else:
            rank = ranks.pop(0)
            if not ranks:
                del self._pending[image_path]
        number = rank // BLOCK
        self._blocks[number] ^= 1 << rank % BLOCK
        self.retired.append(rank)
        self._left -= 1
        tree, node, end = self._tree, number + 1, len(self._tree)
        while node < end:
            tree[node] -= 1
            node += node & -node

    def now(self) -> Unseen:
        return Unseen(self, self._left)

    def path(self, rank: int) -> str:
        return self._path_of(self._snapshot[self._positions[rank]])

    def ranks(self) -> Iterator[int]:
        for number, block in enumerate(self._blocks):
            yield from (number * BLOCK + place for place, bit in enumerate(f"{block:b}"[::-1]) if bit == "1")

    def nth(self, number: int) -> str:
        tree, node, step = self._tree, 0, len(self._tree) >> 1
        while step:
            if (count := tree[node + step]) <= number:
                node += step
                number -= count
            step >>= 1
        return self.path(node * BLOCK + _nth_bit(self._blocks[node], number))

    def paths_before(self, retired: int) -> list[str]:
        """The unseen samples when only so many had been retired."""
        return [self.path(rank) for rank in sorted([*self.retired[retired:], *self.ranks()])]


class Unseen(Sequence[str]):
    """The unseen samples of this moment: as long as it was, whatever is retired later."""

    def __init__(self, index: UnseenIndex, count: int) -> None:
        self._index, self._count, self._retired = index, count, len(index.retired)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, number: int) -> str: ...
    @overload
    def __getitem__(self, number: slice) -> list[str]: ...
    def __getitem__(self, number: int | slice) -> str | list[str]:
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(self._count))]
        place = number + self._count if number < 0 else number
        if not 0 <= place < self._count:
            raise IndexError("no such sample")
        return self._index.nth(place) if self._is_now() else self._index.paths_before(self._retired)[place]

    def __iter__(self) -> Iterator[str]:
        return iter(self._index.paths_before(self._retired))

    def _is_now(self) -> bool:
        return self._retired == len(self._index.retired)


def counted(buckets: dict[str, list[Any]], bucket: str) -> list[Any]:
    """The bucket's list, exchanged for one that counts its changes if nobody else holds the old one and could change it."""
    images = buckets.get(bucket, [])
    if type(images) is not list or bucket not in buckets:
        return images
    held = sys.getrefcount(images)
    # The dict, this variable, the argument of the count, and the variables of upstream's two functions, which only read.
    if held > 3 + _held_by_upstream(images):
        return images
    buckets[bucket] = CountedList(images)
    return buckets[bucket]


def _held_by_upstream(images: list[Any]) -> int:
    frame, names = sys._getframe(1), ["__iter__", "_iteration_unseen_images"]
    found = 0
    while frame is not None and names:
        if frame.f_code.co_name == names[-1]:
            names.pop()
            found += frame.f_locals.get("bucket_images") is images
        elif len(names) == 1:
            break
        frame = frame.f_back  # type: ignore[assignment]
    return found


def _nth_bit(block: int, number: int) -> int:
    """The place of the bit that has so many set bits below it."""
    place, width = 0, BLOCK // 2
    while width:
        low = block & ((1 << width) - 1)
        below = low.bit_count()
        if number < below:
            block = low
        else:
            number -= below
            block >>= width
            place += width
        width >>= 1
    return place


def _tree(counts: list[int]) -> list[int]:
    """A Fenwick tree: sums of leading counts in logarithmic time. As long as a power of two, so no search leaves it."""
    tree = [0, *counts]
    tree += [0] * ((1 << len(counts).bit_length()) - len(tree))
    for node in range(1, len(tree)):
        parent = node + (node & -node)
        if parent < len(tree):
            tree[parent] += tree[node]
    return tree
