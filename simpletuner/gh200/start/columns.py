"""The metadata of all pictures, read one by one: each entry stays text in a file of ours until somebody asks for it.

Upstream's JSON is the truth. The file belongs to that JSON's very bytes, so it is never older than they are.
"""

from __future__ import annotations

import json
import marshal
import os
import threading
from array import array
from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Self

from ..errors import GH200Error
from .record import open_record, record_beside, write_record

_ABSENT = object()


class Texts:
    """Entries in a record; the open file keeps them, whatever becomes of its name."""

    def __init__(self, file: BinaryIO, start: int, ends: array[int]) -> None:
        self._file, self._start, self._ends = file, start, ends

    def entry(self, number: int) -> Any:
        begin = self._ends[number - 1] if number else 0
        count = self._ends[number] - begin
        try:
            return json.loads(os.pread(self._file.fileno(), count, self._start + begin))
        except (OSError, ValueError) as error:
            raise GH200Error(
                f"The metadata of a picture cannot be read from {self._file.name}.",
                why=f"the file was overwritten, or its disk has gone, while this run used it ({error})",
                fix="delete that file and start again: SimpleTuner's own metadata file has all of it",
            ) from error


class Columns(dict[str, Any]):
    """To everybody a dict. Inside, a value that is an int is the number of a text that nobody has asked for yet."""

    __hash__ = None

    def __init__(self, entries: Iterator[tuple[str, int]], texts: Texts) -> None:
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

    def lacks_no_entry_of(self, paths: set[str]) -> bool:
        return paths <= self.keys() and None not in super().values()


def columns_of(backend: Any, content: bytes, known: Mapping[str, str]) -> Columns | None:
    """The record made from these very bytes, if there is one."""
    opened = open_record(_file(backend), _key(content))
    if opened is None:
        return None
    file, start, (paths, numbers, ends) = opened
    ends = array("Q", ends)
    texts = Texts(file, start, ends)
    # One int for all entries of one text.
    shared = list(range(len(ends)))
    rows = map(shared.__getitem__, array("I", numbers))
    return Columns(zip(map(known.get, paths, paths), rows, strict=True), texts)


def keep_columns(backend: Any, content: bytes, metadata: dict[str, Any]) -> None:
    """For the next start, which then parses none of it."""
    if not metadata or not all(type(entry) is dict for entry in metadata.values()):
        return
    known: dict[str, int] = {}
    numbers = array("I", [known.setdefault(json.dumps(entry), len(known)) for entry in metadata.values()])
    texts = [text.encode("ascii") for text in known]
    ends = array("Q")
    end = 0
    for text in texts:
        end += len(text)
        ends.append(end)
    table = marshal.dumps((list(metadata), numbers.tobytes(), ends.tobytes()))
    write_record(_file(backend), _key(content), table, b"".join(texts))


def _file(backend: Any) -> Path:
    return record_beside(Path(backend.metadata_file), "columns")


def _key(content: bytes) -> object:
    return sha256(content).hexdigest()
