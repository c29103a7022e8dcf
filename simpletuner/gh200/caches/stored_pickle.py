"""What a stored entry's pickle says, read as data: the few opcodes torch writes for plain tensors, and nothing is called."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NoReturn

import torch


class NotPlain(Exception):
    """Something this reader does not know, or does not want to: `torch.load` decides about the file."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as its file describes it; offset, shape and stride count elements, `storage` names the record."""

    storage: str
    elements: int
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Storage:
    name: str
    elements: int
    dtype: torch.dtype


_MARK: Final = object()
_NO_HOOKS: Final = object()
_REBUILD, _HOOKS, _SIZE = "torch._utils _rebuild_tensor_v2", "collections OrderedDict", "torch Size"
_STORAGES = {
    f"torch {name}Storage": dtype
    for name, dtype in {
        "Float": torch.float32, "Double": torch.float64, "Half": torch.float16, "BFloat16": torch.bfloat16,
        "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8,
        "Bool": torch.bool, "ComplexFloat": torch.complex64, "ComplexDouble": torch.complex128,
    }.items()
}  # fmt: skip
_DTYPES = {str(dtype).replace(".", " "): dtype for dtype in _STORAGES.values()}
_PLAIN = frozenset({type(None), bool, int, float, str, torch.dtype, torch.Size})
_MOST_BYTES = 1 << 20
_DEEPEST = 32


@dataclass(frozen=True, slots=True)
class _Name:
    """A global the file names. It is looked up nowhere: it is one of the words above, or the file is not plain."""

    text: str


@lru_cache(maxsize=1024)
def stored_entry(pickled: bytes) -> Any:
    """The entry with a StoredTensor in the place of each tensor, or NotPlain; not to be changed, it is kept.

    Files of one shape have one pickle.
    """
    if len(pickled) > _MOST_BYTES:
        raise NotPlain("a pickle of more than a megabyte")
    try:
        entry = _Machine(pickled).run()
        _check(entry, _DEEPEST)
    except (IndexError, KeyError, ValueError, TypeError, struct.error) as error:
        raise NotPlain(f"{type(error).__name__}: {error}") from error
    return entry


def _check(node: Any, depth: int) -> None:
    kind = type(node)
    if depth == 0:
        raise NotPlain("nested too deeply")
    if kind is dict:
        for key, item in node.items():
            if type(key) not in _PLAIN:
                raise NotPlain("a dict with a key that is no plain value")
            _check(item, depth - 1)
    elif kind in (list, tuple):
        for item in node:
            _check(item, depth - 1)
    elif kind is not StoredTensor and kind not in _PLAIN:
        raise NotPlain(f"a {kind.__name__}")


class _Machine:
    """Protocol 2, as torch.save writes it; containers may be filled, not referred to again."""

    def __init__(self, text: bytes) -> None:
        self.text, self.at = text, 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        if self.text[:2] != b"\x80\x02":
            raise NotPlain("not protocol 2")
        self.at = 2
        while True:
            code = self.text[self.at]
            self.at += 1
            if code == _STOP:
                break
            _STEPS[code](self)
        if len(self.stack) != 1 or self.at != len(self.text):
            raise NotPlain("more than one value")
        return self.stack[0]

    def taken(self, count: int) -> bytes:
        found = self.text[self.at : self.at + count]
        if len(found) != count:
            raise NotPlain("the pickle is cut")
        self.at += count
        return found

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.taken(struct.calcsize(form)))[0]

    def above_mark(self) -> list[Any]:
        stack = self.stack
        at = len(stack) - 1
        while stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise NotPlain("no mark")
        found = stack[at + 1 :]
        del stack[at:]
        return found

    def popped(self, count: int) -> tuple[Any, ...]:
        if count > len(self.stack) or _MARK in self.stack[-count:]:
            raise NotPlain("the stack is too short")
        found = tuple(self.stack[-count:])
        del self.stack[-count:]
        return found


def _push(value: Callable[[_Machine], Any]) -> Callable[[_Machine], None]:
    def step(machine: _Machine) -> None:
        machine.stack.append(value(machine))

    return step


def _text(machine: _Machine) -> str:
    return machine.taken(machine.number("<I")).decode("utf-8", "surrogatepass")


def _global(machine: _Machine) -> Any:
    words = []
    for _ in range(2):
        end = machine.text.index(b"\n", machine.at)
        words.append(machine.taken(end - machine.at).decode("ascii"))
        machine.at += 1
    name = " ".join(words)
    if name in _DTYPES:
        return _DTYPES[name]
    if name not in _STORAGES and name not in (_REBUILD, _HOOKS, _SIZE):
        raise NotPlain(f"names {name[:80]}")
    return _Name(name)


def _recalled(machine: _Machine, number: int) -> Any:
    found = machine.memo[number]
    if type(found) in (dict, list):
        raise NotPlain("a container that occurs twice")
    return found


def _memorise(machine: _Machine, number: int) -> None:
    machine.memo[number] = machine.stack[-1]


def _persistent(machine: _Machine) -> _Storage:
    (found,) = machine.popped(1)
    word, kind, name, place, elements = found
    # Upstream loads to the CPU whatever device an entry was saved from; a storage on `meta` has no bytes.
    known = word == "storage" and type(kind) is _Name and type(name) is str and type(place) is str
    if not known or not (place == "cpu" or place.startswith("cuda")) or type(elements) is not int:
        raise NotPlain("a storage of another kind")
    return _Storage(name, elements, _STORAGES[kind.text])


def _reduced(machine: _Machine) -> Any:
    function, arguments = machine.popped(2)
    if type(function) is not _Name or type(arguments) is not tuple:
        raise NotPlain("a call of something that is no name")
    if function.text == _HOOKS and arguments == ():
        return _NO_HOOKS
    if function.text == _SIZE:
        (sizes,) = arguments
        return torch.Size(_counts(sizes))
    if function.text != _REBUILD:
        raise NotPlain(f"a call of {function.text}")
    storage, offset, shape, stride, needs_gradient, hooks = arguments
    if type(storage) is not _Storage or needs_gradient is not False or hooks is not _NO_HOOKS:
        raise NotPlain("a tensor with more than values")
    (offset,) = _counts((offset,))
    shape, stride = _counts(shape), _counts(stride)
    if len(shape) != len(stride):
        raise NotPlain("shape and strides of different lengths")
    return StoredTensor(storage.name, storage.elements, storage.dtype, offset, shape, stride)


def _counts(numbers: Any) -> tuple[int, ...]:
    if type(numbers) is not tuple or any(type(number) is not int or number < 0 for number in numbers):
        raise NotPlain("a size that is no count")
    return numbers


def _set_items(machine: _Machine, items: list[Any]) -> None:
    target = machine.stack[-1]
    if type(target) is not dict or len(items) % 2:
        raise NotPlain("items for something that is no dict")
    target.update(zip(items[::2], items[1::2], strict=True))


def _append(machine: _Machine, items: list[Any]) -> None:
    target = machine.stack[-1]
    if type(target) is not list:
        raise NotPlain("items for something that is no list")
    target.extend(items)


def _mark(machine: _Machine) -> None:
    machine.stack.append(_MARK)


def _unknown(machine: _Machine) -> NoReturn:
    raise NotPlain(f"opcode {machine.text[machine.at - 1]:#x}")


_STOP: Final = ord(".")
_STEPS: list[Callable[[_Machine], None]] = [_unknown] * 256
for _code, _step in {
    b"(": _mark,
    b"}": _push(lambda m: {}),
    b"]": _push(lambda m: []),
    b")": _push(lambda m: ()),
    b"N": _push(lambda m: None),
    b"\x88": _push(lambda m: True),
    b"\x89": _push(lambda m: False),
    b"J": _push(lambda m: m.number("<i")),
    b"K": _push(lambda m: m.number("<B")),
    b"M": _push(lambda m: m.number("<H")),
    b"\x8a": _push(lambda m: int.from_bytes(m.taken(m.number("<B")), "little", signed=True)),
    b"G": _push(lambda m: m.number(">d")),
    b"X": _push(_text),
    b"c": _push(_global),
    b"h": _push(lambda m: _recalled(m, m.number("<B"))),
    b"j": _push(lambda m: _recalled(m, m.number("<I"))),
    b"q": lambda m: _memorise(m, m.number("<B")),
    b"r": lambda m: _memorise(m, m.number("<I")),
    b"t": _push(lambda m: tuple(m.above_mark())),
    b"\x85": _push(lambda m: m.popped(1)),
    b"\x86": _push(lambda m: m.popped(2)),
    b"\x87": _push(lambda m: m.popped(3)),
    b"Q": _push(_persistent),
    b"R": _push(_reduced),
    b"s": lambda m: _set_items(m, list(m.popped(2))),
    b"u": lambda m: _set_items(m, m.above_mark()),
    b"a": lambda m: _append(m, list(m.popped(1))),
    b"e": lambda m: _append(m, m.above_mark()),
}.items():
    _STEPS[_code[0]] = _step
