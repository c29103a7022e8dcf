"""Metadata in less memory: numbers that are equal are one object, and paths are those that the buckets have already."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from .columns import Columns, columns_from, columns_of
from .record import load, save


def metadata_from(
    content: bytes, known: Iterable[Iterable[str]], record: Path | None = None, saves: bool = False
) -> Any:
    """What `json.loads` gives; the entries are dicts and lists of their own, since upstream writes into them. The record has
    what was found in the same content before. `known`: paths that somebody has already, by bucket."""
    if record is None or type(content) is not bytes:
        return _parsed(content, known)
    key = sha256(content).digest()
    kept = load(record, key)
    if kept is not None:
        return columns_from(kept)
    columns = _parsed(content, known)
    found = columns.kept() if saves and isinstance(columns, Columns) else None
    if found is not None:
        save(record, key, found)
    return columns


def _parsed(content: bytes, known: Iterable[Iterable[str]]) -> Any:
    one_each = {path: path for paths in known for path in paths}
    columns = columns_of(content, one_each)
    if columns is not None:
        return columns
    loaded = json.loads(content, parse_int=lru_cache(maxsize=1 << 16)(int))
    return {one_each.get(path, path): entry for path, entry in loaded.items()} if type(loaded) is dict else loaded


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
