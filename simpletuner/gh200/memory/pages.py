"""Page arithmetic: which whole pages a range of memory has, touches, or spans."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .driver import ManagedRange

if TYPE_CHECKING:
    import torch

PAGE = 65536  # the largest page size of Grace and the driver's own granule: a multiple of the kernel's pages
ALIGNMENT = 256  # of a tensor among others in one piece of memory: what the widest loads of a GPU want, and more


def aligned(span: int) -> int:
    """A size rounded up to the alignment."""
    return -(-span // ALIGNMENT) * ALIGNMENT


def whole_pages(pointer: int, size: int) -> tuple[int, int]:
    """The pages that lie entirely inside a range, as start and size: advice on them touches no neighbour."""
    start = -(-pointer // PAGE) * PAGE
    return start, (pointer + size) // PAGE * PAGE - start


def covering_pages(pointer: int, size: int, bounds: ManagedRange | None) -> tuple[int, int]:
    """All pages a range touches, kept inside the allocation it lies in."""
    start, end = pointer // PAGE * PAGE, -(-(pointer + size) // PAGE) * PAGE
    if bounds is not None:
        start, end = max(start, bounds.base), min(end, bounds.base + bounds.size)
    return start, end - start


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges that touch or overlap as one."""
    joined: list[tuple[int, int]] = []
    for start, size in sorted(ranges):
        if joined and start <= sum(joined[-1]):
            first = joined[-1][0]
            joined[-1] = (first, max(sum(joined[-1]), start + size) - first)
        else:
            joined.append((start, size))
    return joined


def extent(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to its last, whatever its strides."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()
