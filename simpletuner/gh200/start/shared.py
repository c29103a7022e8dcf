"""Metadata in less memory: numbers that are equal are one object, and paths are those that the buckets have already."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from .columns import Columns, columns_of


def metadata_from(content: bytes, known: dict[str, str]) -> Any:
    """What `json.loads` gives; the entries are dicts and lists of their own, since upstream writes into them."""
    columns = columns_of(content, known)
    if columns is not None:
        return columns
    loaded = json.loads(content, parse_int=lru_cache(maxsize=1 << 16)(int))
    return {known.get(path, path): entry for path, entry in loaded.items()} if type(loaded) is dict else loaded


def lacks_no_entry(metadata: Any, paths: set[str]) -> bool:
    """Whether upstream would find an entry for each of these, without asking for it."""
    if isinstance(metadata, Columns):
        return metadata.lacks_no_entry_of(paths)
    return type(metadata) is dict and paths <= metadata.keys() and None not in metadata.values()


def has_none(metadata: Any, member: str) -> bool:
    """Whether no picture's entry has this member; False where that is not plain to see."""
    if isinstance(metadata, Columns):
        return metadata.has_none(member)
    return type(metadata) is dict and all(type(entry) is dict and member not in entry for entry in metadata.values())
