"""One optimizer step in parts: the optimizer's own `step`, with its groups cut down to a few parameters at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Bucket:
    """Parameters of one group that are stepped together."""

    group: dict[str, Any]
    parameters: tuple[Any, ...]


def buckets(groups: Iterable[dict[str, Any]], size_of: Callable[[Any], int], limit: int) -> Iterator[Bucket]:
    """Parameters with a gradient, in their order, as many as stay below the limit; a larger one is a bucket by itself."""
    for group in groups:
        taken: list[Any] = []
        total = 0
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            size = size_of(parameter)
            if taken and total + size > limit:
                yield Bucket(group, tuple(taken))
                taken, total = [], 0
            taken.append(parameter)
            total += size
        if taken:
            yield Bucket(group, tuple(taken))


@contextmanager
def only(optimizer: Any, bucket: Bucket) -> Iterator[None]:
    """The optimizer has no other parameters until the end of the block."""
    groups, parameters = optimizer.param_groups, bucket.group["params"]
    optimizer.param_groups, bucket.group["params"] = [bucket.group], list(bucket.parameters)
    try:
        yield
    finally:
        optimizer.param_groups, bucket.group["params"] = groups, parameters
