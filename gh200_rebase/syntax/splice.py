"""Insertions into a file's bytes: how they combine, and where they cannot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

# What comes first where several insertions meet at one byte: the end of a wrap belongs to what stands before it,
# its beginning to what follows.
RANKS = {"close": 0, "comma": 1, "insert": 2, "base": 2, "open": 3}


class CannotPlace(Exception):
    """An anchor was found, but our code cannot stand there; the message says why."""


@dataclass(frozen=True)
class Piece:
    """Bytes to insert. `indent` sorts insertions at one line start; `region` are the bytes a wrap encloses."""

    offset: int
    data: bytes
    kind: str = "insert"
    indent: int = 0
    region: tuple[int, int] | None = None


@dataclass(frozen=True)
class Splice:
    """A piece with the edit it belongs to; `order` is the edit's place in commit order."""

    piece: Piece
    edit: str
    patch: int
    order: int

    @property
    def sort_key(self) -> tuple[int, int, int, int]:
        """Its order among the insertions of a file."""
        # Deeper code ends the block above; it has to stand before what belongs to an outer block.
        return self.piece.offset, RANKS[self.piece.kind], -self.piece.indent, self.order


@dataclass(frozen=True)
class Inserted:
    """The position of a splice's bytes in the new file."""

    splice: Splice
    start: int
    end: int


def compose(data: bytes, splices: Iterable[Splice]) -> tuple[bytes, tuple[Inserted, ...]]:
    """The new bytes, and where each insertion ended up."""
    parts: list[bytes] = []
    inserted: list[Inserted] = []
    position = size = 0
    commas: set[int] = set()
    for splice in sorted(splices, key=lambda item: item.sort_key):
        piece = splice.piece
        if piece.kind == "comma" and piece.offset in commas:
            continue
        commas |= {piece.offset} if piece.kind == "comma" else set()
        parts += [data[position : piece.offset], piece.data]
        start = size + piece.offset - position
        size = start + len(piece.data)
        inserted.append(Inserted(splice, start, size))
        position = piece.offset
    parts.append(data[position:])
    return b"".join(parts), tuple(inserted)


def conflicts(splices: Sequence[Splice]) -> Iterator[tuple[str, str]]:
    """Pairs of edits that cannot both be made."""
    bases: dict[int, str] = {}
    for splice in splices:
        if splice.piece.kind == "base":
            if splice.piece.offset in bases:
                yield bases[splice.piece.offset], splice.edit
            bases[splice.piece.offset] = splice.edit
    wraps = [splice for splice in splices if splice.piece.kind == "open"]
    for number, wrap in enumerate(wraps):
        assert wrap.piece.region
        start, end = wrap.piece.region
        for other in wraps[number + 1 :]:
            assert other.piece.region
            if other.piece.region[0] < end and start < other.piece.region[1]:
                yield wrap.edit, other.edit
        for other in splices:
            if other.piece.region is None and start < other.piece.offset < end:
                yield wrap.edit, other.edit
