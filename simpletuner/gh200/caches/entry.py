"""What a held entry is: containers around slots, made from a value once and handed out anew at every read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .arena import TensorArena
from .blocks import Slot, holdable
from .reader import PLAIN_TYPES, Signature

_BUILDERS: dict[type, Callable[[Any], Any]] = {
    Slot: lambda slot: slot.tensor.detach(),
    dict: lambda node: {key: build(value) for key, value in node.items()},
    list: lambda node: [build(value) for value in node],
    tuple: lambda node: tuple(build(value) for value in node),
}


def build(node: Any) -> Any:
    builder = _BUILDERS.get(type(node))
    return node if builder is None else builder(node)


class NotHoldable(Exception):
    """An entry has a part that a view cannot stand for; it is read from its file every time."""


class Entry:
    __slots__ = ("arena", "generation", "signature", "slots", "template")

    def __init__(
        self, template: Any, slots: tuple[Slot, ...], arena: TensorArena, generation: int, signature: Signature
    ) -> None:
        self.template, self.slots, self.arena = template, slots, arena
        self.generation, self.signature = generation, signature


def take_in(node: Any, arena: TensorArena, slots: list[Slot]) -> Any:
    """The value with its tensors copied into the arena; the slots are also those of an attempt that fails."""
    kind = type(node)
    if kind in PLAIN_TYPES:
        return node
    if isinstance(node, torch.Tensor) and holdable(node):
        slots.append(arena.hold(node))
        return slots[-1]
    if kind is dict:
        return {key: take_in(item, arena, slots) for key, item in node.items()}
    if kind in (list, tuple):
        return kind(take_in(item, arena, slots) for item in node)
    raise NotHoldable(f"an entry holds a {kind.__module__}.{kind.__qualname__}")
