"""A cached entry: containers around slots, made from a value once and built anew at every read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .arena import TensorArena
from .blocks import Slot, holdable
from .reader import PLAIN_TYPES, NotPlain, Signature, mapped

_BUILDERS: dict[type, Callable[[Any], Any]] = {
    Slot: lambda slot: slot.tensor.detach(),
    dict: lambda node: {key: build(value) for key, value in node.items()},
    list: lambda node: [build(value) for value in node],
    tuple: lambda node: tuple(build(value) for value in node),
}


def build(node: Any) -> Any:
    """The containers of a template anew, with views of its slots."""
    builder = _BUILDERS.get(type(node))
    return node if builder is None else builder(node)


@dataclass(slots=True)
class Entry:
    """A template, its slots and the file version they came from."""

    template: Any
    slots: tuple[Slot, ...]
    arena: TensorArena
    generation: int
    signature: Signature


def copied_in(value: Any, arena: TensorArena, slots: list[Slot]) -> Any:
    """The value with its tensors copied into the arena; the slots are also those of an attempt that fails."""

    def stored(node: Any) -> Any:
        kind = type(node)
        if isinstance(node, torch.Tensor) and holdable(node):
            slots.append(arena.hold(node))
            return slots[-1]
        if kind not in PLAIN_TYPES:
            raise NotPlain(f"an entry holds a {kind.__module__}.{kind.__qualname__}")
        return node

    return mapped(value, stored)
