"""A fault of SimpleTuner's: below a relative `instance_data_dir` it never encodes images in subdirectories."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ...runtime import current


def absolute_directories(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The datasets that it would happen to get the absolute path; the others keep theirs, which names their cached latents."""
    run = current()
    if run is None or not run.settings.fast_start or not isinstance(entries, list):
        return entries
    return [_with_absolute_directory(entry) for entry in entries]


def _with_absolute_directory(entry: Any) -> Any:
    directory = entry.get("instance_data_dir") if isinstance(entry, Mapping) else None
    if not isinstance(directory, str) or os.path.isabs(directory) or not _has_subdirectories(directory):
        return entry
    return {**entry, "instance_data_dir": os.path.abspath(directory)}


def _has_subdirectories(directory: str) -> bool:
    try:
        with os.scandir(directory) as found:
            return any(one.is_dir() for one in found)
    except (OSError, ValueError):
        return False
