"""The list of datasets of a run, changed once before SimpleTuner looks at it."""

from __future__ import annotations

from typing import Any

from .ram.hooks import local_entries
from .scan.directories import absolute_directories
from .tensors.directories import directories_for_run


def dataset_entries(entries: list[dict[str, Any]], factory: Any) -> list[dict[str, Any]]:
    """In-memory datasets as local ones, with absolute directories where SimpleTuner needs them, and cache directories."""
    return directories_for_run(absolute_directories(local_entries(entries)), factory)
