"""Many short texts as one: read back piece by piece, so that a million of them do not stand in the heap for a moment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

AT_ONCE = 1 << 16
# No file's name has it.
_BETWEEN = "\0"


def pieces(data: bytes, between: bytes, start: int = 0, end: int | None = None) -> Iterator[bytes]:
    """The data from start to end in pieces that fit into a core's cache, cut where `between` stands."""
    end = len(data) if end is None else end
    while start < end:
        cut = data.find(between, min(end, start + AT_ONCE), end)
        cut = end if cut < 0 else cut
        yield data[start:cut]
        start = cut + len(between)


def packed(names: Iterable[str]) -> bytes:
    return _BETWEEN.join(names).encode(errors="surrogateescape")


def unpacked(data: bytes) -> Iterator[list[str]]:
    """What was packed, in lists of some thousand; an empty name stands only alone."""
    for piece in pieces(data, _BETWEEN.encode()):
        yield piece.decode(errors="surrogateescape").split(_BETWEEN)
