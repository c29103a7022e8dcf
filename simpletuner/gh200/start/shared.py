"""Metadata in less memory: numbers that are equal are one object, and paths are those that the buckets have already."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any


def metadata_from(backend: Any, content: bytes) -> Any:
    """What `json.loads` gives; the entries are dicts and lists of their own, since upstream writes into them."""
    loaded = json.loads(content, parse_int=lru_cache(maxsize=1 << 16)(int))
    if type(loaded) is not dict:
        return loaded
    known = {path: path for paths in backend.aspect_ratio_bucket_indices.values() for path in paths}
    return {known.get(path, path): entry for path, entry in loaded.items()}
