"""Metadata in less memory: numbers that are equal are one object, and paths are those that the buckets have already."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from .columns import Columns, columns_of, keep_columns


def metadata_from(backend: Any, content: bytes, known: dict[str, str], certified: bool) -> Any:
    """What `json.loads` gives; the entries are dicts and lists of their own, since upstream writes into them."""
    columns = columns_of(backend, content, known) if certified else None
    if columns is not None:
        return columns
    loaded = json.loads(content, parse_int=lru_cache(maxsize=1 << 16)(int))
    if type(loaded) is not dict:
        return loaded
    if certified and getattr(backend.accelerator, "is_local_main_process", True):
        keep_columns(backend, content, loaded)
    return {known.get(path, path): entry for path, entry in loaded.items()}


def lacks_no_entry(metadata: Any, paths: set[str]) -> bool:
    """Whether upstream would find an entry for each of these, without asking for it."""
    if isinstance(metadata, Columns):
        return metadata.lacks_no_entry_of(paths)
    return type(metadata) is dict and paths <= metadata.keys() and None not in metadata.values()
