"""Many short texts as one: read back piece by piece, so that a million of them do not stand in the heap for a moment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from hashlib import sha256

AT_ONCE = 1 << 16
# No file's name has it.
_BETWEEN = "\0"
_NUL = _BETWEEN.encode()
# What JSON does not write in another way, and what stands between names.
_PLAIN = bytes({0, *range(0x20, 0x7F)} - set(b'"\\'))


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
    for piece in pieces(data, _NUL):
        yield piece.decode(errors="surrogateescape").split(_BETWEEN)


# As `json.dumps` writes a dict of names, each with a False.
HELD = b'{"', b'": false, "', b'": false}'


def packed_from_json(text: str) -> bytes | None:
    """The names of such a dict; None where only JSON can tell."""
    begin, between, end = HELD
    data = text.encode() if text.isascii() else b""
    if not data.startswith(begin) or not data.endswith(end) or _NUL in data:
        return None
    names = data[len(begin) : -len(end)].replace(between, _NUL)
    return names if names and not names.translate(None, _PLAIN) else None


class PackedPaths:
    """Paths of many files by folder: each folder's path with its slash, and the names in it, packed."""

    def __init__(self) -> None:
        self.folders: list[tuple[str, bytes]] = []
        self.count = 0

    def add(self, folder: str, names: bytes) -> None:
        self.folders.append((folder, names))
        self.count += names.count(_NUL) + 1 if names else 0
        vars(self).pop("digest", None)

    def __iter__(self) -> Iterator[str]:
        for folder, names in self.folders:
            for part in unpacked(names):
                yield from [folder + name for name in part]

    @cached_property
    def digest(self) -> bytes:
        """As `digest_of` all of them."""
        told = sha256()
        for text in self.joined(_NUL):
            told.update(text)
        return told.digest()

    def joined(self, between: bytes) -> Iterator[bytes]:
        """All paths as one text, in pieces."""
        before = b""
        for folder, names in self.folders:
            start = folder.encode(errors="surrogateescape")
            # A folder without names has no piece.
            for piece in pieces(names, _NUL):
                yield before + start + piece.replace(_NUL, between + start)
                before = between

    def plain(self) -> bool:
        """Whether JSON writes each of them as it is."""
        texts = (text for folder, names in self.folders for text in (folder.encode(errors="surrogateescape"), names))
        return not any(text.translate(None, _PLAIN) for text in texts)
