"""The hints of a batch: what lies in managed memory and is worth one, by the access pattern, in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from .driver import Driver, RangeAttribute
from .hints import Hints, Outcome, attempt, cuda_device, current, prefer_cpu_residency, prefer_gpu_residency, reachable
from .pages import covering_pages, extent, whole_pages

if TYPE_CHECKING:
    import torch

    from ..config.schema import AccessPattern

PREFERENCES: dict[AccessPattern, Callable[[torch.Tensor], Outcome]] = {
    "gpu_first": prefer_gpu_residency,
    "cpu_first": prefer_cpu_residency,
}


def batch_tensors(batch: Any) -> Iterator[torch.Tensor]:
    """Every tensor in nested dicts, lists and tuples, each once, whatever upstream calls it."""
    import torch

    pending, seen = [batch], set()
    while pending:
        item = pending.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            yield item
        elif isinstance(item, Mapping):
            pending.extend(item.values())
        elif isinstance(item, list | tuple):
            pending.extend(item)


def _worth_a_hint(hints: Hints, tensor: torch.Tensor, driver: Driver) -> Outcome:
    outcome, managed = reachable(driver, tensor, cuda_device())
    if outcome is not Outcome.APPLIED:
        return outcome
    if managed is None:
        return Outcome.NOT_MANAGED
    if hints.left_alone(managed.base):
        return Outcome.STEPPED_BACK
    if whole_pages(tensor.data_ptr(), extent(tensor))[1] <= 0:
        return Outcome.SMALLER_THAN_A_PAGE
    stays = hints.policy() != "cpu_first" and not hints.may_move(tensor.data_ptr(), extent(tensor))
    return Outcome.BEYOND_SHARE if stays else Outcome.APPLIED


def _moved_together(hints: Hints, tensors: list[torch.Tensor], driver: Driver) -> Outcome:
    device = cuda_device()
    ranges = []
    for tensor in tensors:
        start, size = covering_pages(tensor.data_ptr(), extent(tensor), driver.managed_range(tensor.data_ptr(), device))
        if driver.range_attribute(start, size, RangeAttribute.LAST_PREFETCH_LOCATION, device) != device:
            ranges.append((start, size))
    if not ranges:
        return Outcome.RESIDENT
    hints.mover.move(driver, ranges, device)
    return Outcome.APPLIED


def optimize_batch_for_gh200(batch: Any) -> Any:
    """Give every tensor of a batch the hints of the access pattern; returns the batch, `False` and `None` included."""
    hints = current()
    if not batch or not hints.enabled:
        return batch
    # Others' memory is left alone: a hint moves whole pages, and the heap's hold more than this tensor.
    worth = [t for t in batch_tensors(batch) if attempt("batch", partial(_worth_a_hint, hints, t)) is Outcome.APPLIED]
    policy = hints.policy()
    prefer = PREFERENCES.get(policy)
    for tensor in worth:
        if prefer is not None:
            prefer(tensor)
    if worth and policy != "cpu_first":
        attempt("prefetch", partial(_moved_together, hints, worth))
    hints.steps += 1
    return batch
