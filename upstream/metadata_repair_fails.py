"""The repair of missing metadata starts workers with six of seven arguments; they die, and it reports success."""

from __future__ import annotations

import queue
from pathlib import Path

from scene import make_images, metadata_backend


def reproduce(directory: Path) -> str | None:
    """The fault in one sentence, or None."""
    from simpletuner.helpers.metadata.backends import base

    paths = make_images(directory / "images", 20)
    # Plain queues, so that the other fault (scan_loses_entries) does not interfere.
    plain, base.Queue = base.Queue, queue.Queue
    try:
        metadata_backend(directory / "images").compute_aspect_ratio_bucket_indices()
        (directory / "output" / "metadata.json").write_text("{}")
        backend = metadata_backend(directory / "images")
        backend.compute_aspect_ratio_bucket_indices()
    finally:
        base.Queue = plain
    missing = [path for path in paths if backend.get_metadata_by_filepath(path) is None]
    return f"{len(missing)} of {len(paths)} images still have no metadata after the repair" if missing else None
