"""In-memory datasets on upstream's page of datasets: local ones to whoever reads files there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..settings.dataset_file import IN_MEMORY

LOCAL = "local"
FOLDER = "instance_data_dir"


def backend_type(name: str) -> str:
    return LOCAL if name == IN_MEMORY else name


def readable(datasets: Any) -> Any:
    """A plan for scans and thumbnails. It is never saved."""
    if not isinstance(datasets, list):
        return datasets
    return [_as_local(entry) if _in_memory(entry) else entry for entry in datasets]


def kept_plan(path: Path, datasets: Any) -> Any:
    """A plan about to be saved: the page drops the folder of what it does not take for local."""
    if not isinstance(datasets, list) or all(not _in_memory(entry) or entry.get(FOLDER) for entry in datasets):
        return datasets
    before = {entry.get("id"): entry for entry in _saved(path) if _in_memory(entry)}
    return [
        {**entry, FOLDER: before[entry.get("id")][FOLDER]}
        if _in_memory(entry) and not entry.get(FOLDER) and FOLDER in before.get(entry.get("id"), {})
        else entry
        for entry in datasets
    ]


def _in_memory(entry: object) -> bool:
    return isinstance(entry, Mapping) and entry.get("type") == IN_MEMORY


def _as_local(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key != IN_MEMORY} | {"type": LOCAL}


def _saved(path: Path) -> list[Any]:
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return []
    return saved if isinstance(saved, list) else []
