"""The metadata of all pictures, parsed one by one: each entry stays text until somebody asks for it.

Entries repeat each other: of a million, a few thousand members differ. A member is text that was seen to be whole JSON, and an
entry is the numbers of its members, so nothing of upstream's file is parsed twice, and little of it is kept.
"""

from __future__ import annotations

import json
import threading
from array import array
from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from functools import lru_cache
from itertools import chain
from typing import Any, Self

from .text import packed, pieces, unpacked

_ABSENT = object()
# As `json.dumps` writes a dict of dicts.
_BEGIN, _END = b'{"', b"}}"
_ENTRY, _OPEN, _MEMBER = '}, "', '": {"', ', "'

# Paths, numbers of their texts, and the texts: members, rows, ends.
Kept = tuple[bytes, bytes, tuple[list[str], bytes, bytes]]


class NotPlain(Exception):
    """Not as `json.dumps` writes a dict of flat dicts."""


class _Members(dict[str, int]):
    """Numbers of members by their text, which begins after a quote. What is in here is whole JSON between braces, so several of
    them with commas between are, too."""

    def __missing__(self, text: str) -> int:
        try:
            json.loads(_as_entry([text]))
        except ValueError:
            raise NotPlain from None
        number = self[text] = len(self)
        return number


class Texts:
    """Entries as numbers of members."""

    def __init__(self, kept: tuple[list[str], bytes, bytes] = ([], b"", b"")) -> None:
        members, rows, ends = kept
        self._members = _Members(zip(members, range(len(members)), strict=True))
        self._rows, self._ends = array("I", rows), array("Q", ends)
        self._by_number: list[str] = []
        # Numbers that are equal are one object.
        self._decode = json.JSONDecoder(parse_int=lru_cache(maxsize=1 << 16)(int)).decode

    def __len__(self) -> int:
        return len(self._ends)

    def kept(self) -> tuple[list[str], bytes, bytes]:
        return list(self._members), self._rows.tobytes(), self._ends.tobytes()

    def add(self, body: str) -> int:
        self._rows.extend(map(self._members.__getitem__, body.split(_MEMBER)))
        self._ends.append(len(self._rows))
        return len(self._ends) - 1

    def mention(self, member: str) -> bool:
        return any(member in text for text in self._members)

    def entry(self, number: int) -> Any:
        begin = self._ends[number - 1] if number else 0
        if len(self._by_number) < len(self._members):
            self._by_number = list(self._members)
        return self._decode(_as_entry([self._by_number[row] for row in self._rows[begin : self._ends[number]]]))


class Columns(dict[str, Any]):
    """To everybody a dict. Inside, a value that is an int is the number of a text that nobody has asked for yet."""

    __hash__ = None

    def __init__(self, entries: Iterable[tuple[str, int]], texts: Texts) -> None:
        super().__init__(entries)
        self._texts: Texts | None = texts
        self._lock = threading.RLock()

    def _read(self, path: str, value: Any) -> Any:
        if type(value) is not int or self._texts is None:
            return value
        with self._lock:
            # Another thread may have been first: all of them are given one entry, since upstream writes into it.
            value = super().get(path, value)
            if type(value) is int and self._texts is not None:
                value = self._texts.entry(value)
                super().__setitem__(path, value)
        return value

    def all_read(self) -> dict[str, Any]:
        """Itself, with every entry read: from now on an ordinary dict."""
        with self._lock:
            for path in super().__iter__():
                self._read(path, super().__getitem__(path))
            self._texts = None
        return self

    def __getitem__(self, path: str) -> Any:
        return self._read(path, super().__getitem__(path))

    def get(self, path: str, default: Any = None) -> Any:
        value = super().get(path, _ABSENT)
        return default if value is _ABSENT else self._read(path, value)

    def __setitem__(self, path: str, entry: Any) -> None:
        if type(entry) is int:
            self.all_read()
        super().__setitem__(path, entry)

    def setdefault(self, path: str, default: Any = None) -> Any:
        if path not in self:
            self[path] = default
        return self[path]

    def pop(self, path: str, *default: Any) -> Any:
        if path in self:
            self[path]
        return super().pop(path, *default)

    def popitem(self) -> tuple[str, Any]:
        self.all_read()
        return super().popitem()

    def update(self, *given: Any, **named: Any) -> None:
        for path, entry in dict(*given, **named).items():
            self[path] = entry

    # With an `__iter__` of its own, `dict(...)`, `{**...}` and `update` of other dicts ask for each entry.
    def __iter__(self) -> Iterator[str]:
        return super().__iter__()

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        self.all_read()
        return super().items()

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        self.all_read()
        return super().values()

    def copy(self) -> dict[str, Any]:
        return dict(self.items())

    def __or__(self, other: Any) -> Any:
        return self.copy() | other

    def __ror__(self, other: Any) -> Any:
        return other | self.copy()

    def __ior__(self, other: Any) -> Self:  # type: ignore[override]
        self.update(other)
        return self

    def __eq__(self, other: object) -> bool:
        self.all_read()
        return bool(super().__eq__(other.all_read() if isinstance(other, Columns) else other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __repr__(self) -> str:
        return repr(self.copy())

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return dict, (self.copy(),)

    def has_none(self, member: str) -> bool:
        """Whether no entry has this member."""
        if self._texts is not None and self._texts.mention(member):
            return False
        return all(type(entry) is int or (type(entry) is dict and member not in entry) for entry in super().values())

    def lacks_no_entry_of(self, paths: set[str]) -> bool:
        return paths <= self.keys() and None not in super().values()

    def kept(self) -> Kept | None:
        """All of it, for `columns_from`; None where somebody has read in it, or a path is no file's."""
        numbers = list(super().values())
        try:
            paths = packed(self)
        except UnicodeEncodeError:
            return None
        if self._texts is None or not set(map(type, numbers)) <= {int}:
            return None
        plain = "" not in self and paths.count(b"\0") + 1 == len(self)
        return (paths, array("Q", numbers).tobytes(), self._texts.kept()) if plain else None


def columns_from(kept: Kept) -> Columns:
    texts = Texts(kept[2])
    # Numbers that are equal are one object here, too.
    numbers = list(range(len(texts)))
    paths = chain.from_iterable(unpacked(kept[0]))
    return Columns(zip(paths, map(numbers.__getitem__, array("Q", kept[1])), strict=True), texts)


def columns_of(content: bytes, known: Mapping[str, str]) -> Columns | None:
    """What `json.loads` would give of this file; None where only it can tell. `known`: paths that somebody has already."""
    if type(content) is not bytes or not content.startswith(_BEGIN) or not content.endswith(_END):
        return None
    texts = Texts()
    try:
        return Columns(_entries(content, known, texts), texts)
    except (NotPlain, ValueError):
        return None


def _entries(content: bytes, known: Mapping[str, str], texts: Texts) -> Iterator[tuple[str, int]]:
    added: dict[str, int] = {}
    for piece in pieces(content, _ENTRY.encode(), len(_BEGIN), len(content) - len(_END)):
        paths, numbers = [], []
        for entry in piece.decode("ascii").split(_ENTRY):
            path, opened, body = entry.partition(_OPEN)
            number = added.get(body)
            if number is None:
                if not opened:
                    raise NotPlain
                number = added[body] = texts.add(body)
            paths.append(path)
            numbers.append(number)
        paths = _decoded(paths)
        yield from zip(map(known.get, paths, paths), numbers, strict=True)


def _decoded(paths: list[str]) -> list[str]:
    """JSON's strings without their quotes."""
    together = "".join(paths)
    if '"' in together or not together.isprintable():
        raise NotPlain
    return [json.loads(f'"{path}"') if "\\" in path else path for path in paths] if "\\" in together else paths


def _as_entry(members: list[str]) -> str:
    return '{"' + _MEMBER.join(members) + "}"
