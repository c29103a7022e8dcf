"""A dataset scan ends while its results are still on their way, and reports success."""

from __future__ import annotations

import time
from multiprocessing import queues
from pathlib import Path
from typing import Any

from scene import make_images, metadata_backend


class BusyMachine:
    """The thread that carries results into a queue's pipe waits a moment for a CPU, as it does beside other work."""

    def __init__(self, pickler: Any) -> None:
        self.pickler = pickler

    def dumps(self, value: Any) -> Any:
        """Pickle a value, dicts after half a second."""
        time.sleep(0.5 if isinstance(value, dict) else 0)
        return self.pickler.dumps(value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pickler, name)


def reproduce(directory: Path) -> str | None:
    """The fault in one sentence, or None."""
    paths = make_images(directory / "images", 200)
    backend = metadata_backend(directory / "images")
    plain = queues._ForkingPickler  # type: ignore[attr-defined]
    queues._ForkingPickler = BusyMachine(plain)  # type: ignore[attr-defined]
    try:
        backend.compute_aspect_ratio_bucket_indices()
    finally:
        queues._ForkingPickler = plain  # type: ignore[attr-defined]
    placed = {path for bucket in backend.aspect_ratio_bucket_indices.values() for path in bucket}
    lost = set(paths) - placed
    return f"{len(lost)} of {len(paths)} images are in no bucket, and nothing was said" if lost else None
