"""Whether the buckets have just the pictures that are there: then none is new and none is gone, and nothing is compared."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

from .held import unread
from .record import digest_of, load, record_beside, save


def just_these(backend: Any, files: Any) -> bool:
    """Whether every picture of a listing is in a bucket, once, and nothing else is there."""
    listed = unread(files)
    if listed is None or backend.data_backend.type != "local":
        return False
    buckets: Iterable[list[str]] = backend.aspect_ratio_bucket_indices.values()
    paths = list(chain.from_iterable(buckets))
    if len(paths) != listed.count or not set(map(type, paths)) <= {str}:
        return False
    file, key = record_beside(backend.cache_file, "placed"), digest_of(paths)
    if load(file, key) == listed.digest:
        return True
    # In another order, perhaps: upstream saves the buckets as it has shuffled them.
    if set(paths) != set(listed):
        return False
    save(file, key, listed.digest)
    return True
