"""Captions that are not beside the pictures: one table for the folder, or one sentence for all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from ..errors import GH200Error
from .folder import Folder

_FILE_COLUMNS = ("file_name", "filename", "file", "image", "image_path", "path", "key", "name", "id")
_CAPTION_COLUMNS = ("caption", "text", "prompt", "description", "captions")


def with_tables(folder: Folder) -> tuple[Folder, str]:
    """The folder with the captions of its one table, and where they came from; as it was where it needs none."""
    if not folder.tables or not folder.uncaptioned:
        return folder, ""
    if len(folder.tables) > 1:
        raise GH200Error(
            "The folder has more than one table of captions.",
            where=", ".join(folder.tables),
            fix="leave one of them, or write the captions into .txt files beside the pictures",
        )
    table = folder.tables[0]
    found = _matched(folder.usable, _rows(folder.root / table))
    if not found:
        raise GH200Error(
            "No row of the table belongs to a picture of the folder.",
            where=str(folder.root / table),
            why=f"looked for file names in {', '.join(_FILE_COLUMNS)} and captions in {', '.join(_CAPTION_COLUMNS)}",
            fix="name the columns so, or write the captions into .txt files beside the pictures",
        )
    return replace(folder, captions={**found, **{k: v for k, v in folder.captions.items() if v}}), table


def _rows(path: Path) -> dict[str, str]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise GH200Error(
            "The table of captions cannot be read here.", where=str(path), why=str(error), fix="pip install pyarrow"
        ) from error
    try:
        table = parquet.read_table(path)
    except Exception as error:  # pyarrow's readers raise a dozen classes of their own
        raise GH200Error(
            "The table of captions cannot be read.", where=str(path), why=str(error), fix="write it again, or remove it"
        ) from error
    names = {name.lower(): name for name in table.column_names}
    files, captions = _column(names, _FILE_COLUMNS), _column(names, _CAPTION_COLUMNS)
    if files is None or captions is None:
        raise GH200Error(
            "The table has no column for the file names or for the captions.",
            where=str(path),
            why=f"its columns are {', '.join(table.column_names)}",
            fix=f"name them {_FILE_COLUMNS[0]} and {_CAPTION_COLUMNS[0]}",
        )
    pairs = zip(table[files].to_pylist(), table[captions].to_pylist(), strict=True)
    return {str(file): _text(caption) for file, caption in pairs if file is not None and _text(caption)}


def _column(names: Mapping[str, str], wanted: Iterable[str]) -> str | None:
    return next((names[name] for name in wanted if name in names), None)


def _text(value: object) -> str:
    first = value[0] if isinstance(value, list) and value else value
    return "" if first is None or isinstance(first, list) else str(first).strip()


def _matched(pictures: list[str], rows: Mapping[str, str]) -> dict[str, str]:
    """By whole relative path first, then by name, then by name without its suffix."""
    found: dict[str, str] = {}
    for picture in pictures:
        stem = os.path.splitext(picture)[0]
        for key in (picture, os.path.basename(picture), stem, os.path.basename(stem)):
            if key in rows:
                found[picture] = rows[key]
                break
    return found
