"""What upstream's scan and sampler call: whether the fast start is on, and who answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..run import current
from .scan import scan
from .unseen import UnseenIndex, counted


def active() -> bool:
    run = current()
    return run is not None and run.settings.fast_start


def scan_workers(
    backend: Any,
    workers: list[Any],
    files: Sequence[Any],
    known: set[str],
    statistics: dict[str, Any] | None,
    progress: Callable[[int, int], object] | None,
) -> list[Any]:
    """None are left to start where the files have been scanned here; otherwise upstream's own."""
    if active() and scan(backend, [str(file) for file in files], known, statistics, progress):
        return []
    return workers


def unseen_index(sampler: Any, bucket: Any, positions: Sequence[int]) -> UnseenIndex | None:
    """An index of the bucket's unseen samples whose cost does not grow with it; None: upstream's own."""
    if not active():
        return None
    backend = sampler.metadata_backend
    source = counted(backend.aspect_ratio_bucket_indices, str(bucket))
    return UnseenIndex(source, backend.seen_images, positions, sampler._sample_path)


def unseen_samples(index: Any) -> Sequence[str] | None:
    """What upstream copies into a list; None where the index is its own."""
    return index.now() if isinstance(index, UnseenIndex) else None
