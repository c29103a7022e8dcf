"""A dict and a list that are filled when somebody looks into them: until then, a promise."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

# What a dict and a list have besides what is spelled out below.
_OF_BOTH = (
    *("__iter__", "__reversed__", "__getitem__", "__setitem__", "__delitem__", "__contains__", "pop", "copy"),
    *("__eq__", "__ne__", "__repr__"),
)
_OF_DICTS = (
    *("get", "keys", "values", "items", "setdefault", "popitem", "update"),
    *("__or__", "__ror__", "__ior__"),
)
_OF_LISTS = (
    *("append", "extend", "insert", "remove", "index", "count", "sort", "reverse"),
    *("__add__", "__radd__", "__mul__", "__rmul__", "__iadd__", "__imul__", "__lt__", "__le__", "__gt__", "__ge__"),
)


class _Late:
    """`kind` is the builtin that it is to everybody; `put` is how that takes what was promised."""

    kind: type
    put: str

    def __init__(self, fill: Callable[[], Iterable[Any]], count: int | None = None) -> None:
        super().__init__()
        self._lock = threading.RLock()
        self.promise(fill, count)

    def promise(self, fill: Callable[[], Iterable[Any]], count: int | None) -> None:
        """What is in it once somebody looks, and how many if that is known."""
        with self._lock:
            self.kind.clear(self)  # type: ignore[attr-defined]
            self._count = count
            self._fill: Callable[[], Iterable[Any]] | None = fill

    @property
    def pending(self) -> bool:
        return self._fill is not None

    def filled(self) -> None:
        with self._lock:
            if self._fill is not None:
                promised = self._fill()
                self.kind.clear(self)  # type: ignore[attr-defined]
                getattr(self.kind, self.put)(self, promised)
                self._fill = None

    def __len__(self) -> int:
        if self._fill is not None:
            if self._count is not None:
                return self._count
            self.filled()
        return int(self.kind.__len__(self))  # type: ignore[attr-defined]

    def clear(self) -> None:
        with self._lock:
            self._fill = None
            self.kind.clear(self)  # type: ignore[attr-defined]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return self.kind, (self.copy(),)  # type: ignore[attr-defined]


class LateDict(_Late, dict[str, Any]):
    kind, put = dict, "update"
    __hash__ = None

    def promise(self, fill: Callable[[], Iterable[tuple[str, Any]]], count: int | None) -> None:
        super().promise(fill, count)
        # The encoder written in C takes a dict without an entry for an empty one, and asks no further.
        dict.__setitem__(self, "", None)


class LateList(_Late, list[str]):
    kind, put = list, "extend"
    __hash__ = None


def _filling(kind: type, name: str) -> Callable[..., Any]:
    plain = getattr(kind, name) if name != "__radd__" else lambda self, other: other + self.copy()

    def method(self: Any, *given: Any, **named: Any) -> Any:
        if self._fill is not None:
            self.filled()
        # Two of them may be compared, joined or added: C looks into the other without asking.
        for other in given:
            if isinstance(other, _Late):
                other.filled()
        return plain(self, *given, **named)

    return method


for _class, _names in ((LateDict, _OF_BOTH + _OF_DICTS), (LateList, _OF_BOTH + _OF_LISTS)):
    for _name in _names:
        setattr(_class, _name, _filling(_class.kind, _name))
