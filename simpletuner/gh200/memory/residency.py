"""Where managed memory is, as the driver reports it: which side a range prefers, and where it was last sent as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from .driver import CudaError, Driver, RangeAttribute

_HOST = -1
_ASKED = {
    "prefers": RangeAttribute.PREFERRED_LOCATION,
    "prefetched": RangeAttribute.LAST_PREFETCH_LOCATION,
}


def places(driver: Driver, ranges: Iterable[tuple[int, int]], device: int) -> dict[str, dict[str, int]]:
    """Bytes of the gpu, the cpu, or neither, which is also the answer where parts of a range differ. Nobody waits for a GPU."""
    found: dict[str, Counter[str]] = {question: Counter() for question in _ASKED}
    for start, size in ranges:
        for question, attribute in _ASKED.items():
            found[question][_side(driver, start, size, attribute, device)] += size
    return {question: {f"{side}_bytes": size for side, size in sides.items()} for question, sides in found.items()}


def _side(driver: Driver, start: int, size: int, attribute: RangeAttribute, device: int) -> str:
    try:
        place = driver.range_attribute(start, size, attribute, device)
    except CudaError:
        # Freed since it was listed, or the device is gone.
        return "neither"
    return "gpu" if place >= 0 else "cpu" if place == _HOST else "neither"
