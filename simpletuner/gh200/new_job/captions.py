"""The captions of a directory: in a file beside each image, or in one table for all."""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import GH200Error
from ..preflight.report import some
from .images import CAPTION, ImageDirectory

_FILE_COLUMNS = ("file_name", "filename", "file", "image", "image_path", "path", "key", "name", "id")
_CAPTION_COLUMNS = ("caption", "text", "prompt", "description", "captions")
# Upstream reads the first; the other is what captioning tools write.
_BESIDE = (CAPTION, ".caption")
_TABLES = ("metadata.jsonl", "metadata.csv")


def with_captions(directory: ImageDirectory) -> tuple[ImageDirectory, str]:
    """The directory with its captions, and where they are if upstream would not find them beside the images."""
    directory, kinds = _beside(directory)
    elsewhere = f"{' and '.join(kinds)} files" if kinds else ""
    tables = [name for name in directory.names if name.lower().endswith(".parquet") or name.lower() in _TABLES]
    if not tables or not directory.uncaptioned:
        return directory, elsewhere
    if len(tables) > 1:
        raise GH200Error(
            "The directory has more than one table of captions.",
            where=", ".join(tables),
            fix="leave one of them, or write the captions into .txt files beside the images",
        )
    (table,) = tables
    rows, notes = _captions_of(directory.root / table)
    found, unknown = _matched(directory.usable, rows)
    if unknown:
        notes = [*notes, f"{len(unknown):,} rows of {table} name no image: {some(unknown)}"]
    if not found:
        raise GH200Error(
            "No row of the table belongs to an image of the directory.",
            where=str(directory.root / table),
            why=f"looked for file names in {', '.join(_FILE_COLUMNS)} and captions in {', '.join(_CAPTION_COLUMNS)}",
            fix="name the columns so, or write the captions into .txt files beside the images",
        )
    captions = {**found, **{k: v for k, v in directory.captions.items() if v}}
    return replace(directory, captions=captions, notes=(*directory.notes, *notes)), table


def _beside(directory: ImageDirectory) -> tuple[ImageDirectory, list[str]]:
    """With the captions in files of an image's name, why others cannot be read, and suffixes upstream does not read."""
    there = {(stem, suffix.lower()): name for name in directory.names for stem, suffix in [os.path.splitext(name)]}
    captions: dict[str, str] = {}
    unread: dict[str, str] = {}
    foreign: set[str] = set()
    for image in directory.usable:
        stem = os.path.splitext(image)[0]
        for name in (there[stem, suffix] for suffix in _BESIDE if (stem, suffix) in there):
            try:
                captions[image] = (directory.root / name).read_text(encoding="utf-8-sig").strip()
            except (OSError, UnicodeDecodeError) as error:
                why = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else f"cannot be read: {error.strerror}"
                unread[image] = f"has a caption that cannot be used: {name} {why}"
                continue
            if captions[image]:
                if name != stem + CAPTION:
                    foreign.add(os.path.splitext(name)[1])
                break
    return replace(directory, captions=captions, unread=unread), sorted(foreign)


def _captions_of(path: Path) -> tuple[dict[str, str], list[str]]:
    """By what the table says of the file, and notes; of two rows for a file the last one counts."""
    try:
        rows = _rows(path)
    except Exception as error:  # pyarrow's readers raise a dozen classes of their own
        raise GH200Error(
            "The table of captions cannot be read.", where=str(path), why=str(error), fix="write it again, or remove it"
        ) from error
    names = {str(name).lower(): name for row in rows for name in row}
    files, captions = _column(names, _FILE_COLUMNS), _column(names, _CAPTION_COLUMNS)
    if files is None or captions is None:
        raise GH200Error(
            "The table has no column for the file names or for the captions.",
            where=str(path),
            why=f"its columns are {', '.join(names)}",
            fix=f"name them {_FILE_COLUMNS[0]} and {_CAPTION_COLUMNS[0]}",
        )
    named = [(str(row[files]), _text(row.get(captions))) for row in rows if row.get(files) is not None]
    twice = sorted(file for file, count in Counter(file for file, _ in named).items() if count > 1)
    notes = (
        [f"{len(twice):,} files are in {path.name} more than once, the last row counts: {some(twice)}"] if twice else []
    )
    return {file: caption for file, caption in named if caption}, notes


def _rows(path: Path) -> list[dict[str, Any]]:
    """One row a line: objects, or values after a line of names."""
    if path.suffix.lower() == ".parquet":
        from pyarrow import parquet

        return list(parquet.read_table(path).to_pylist())
    with path.open(encoding="utf-8-sig", newline="") as file:
        if path.suffix.lower() == ".csv":
            return list(csv.DictReader(file))
        return [_row(number, line) for number, line in enumerate(file, start=1) if line.strip()]


def _row(number: int, line: str) -> dict[str, Any]:
    try:
        return dict(json.loads(line))
    except (ValueError, TypeError) as error:
        why = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else "no object of keys"
        raise ValueError(f"line {number}: {why}") from error


def _column(names: Mapping[str, str], wanted: Iterable[str]) -> str | None:
    return next((names[name] for name in wanted if name in names), None)


def _text(value: object) -> str:
    first = value[0] if isinstance(value, list) and value else value
    return "" if first is None or isinstance(first, list) else str(first).strip()


def _matched(images: list[str], rows: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """By whole relative path first, then by name, then by name without its suffix; and rows that name no image."""
    found: dict[str, str] = {}
    unknown = dict(rows)
    for image in images:
        stem = os.path.splitext(image)[0]
        for key in (image, os.path.basename(image), stem, os.path.basename(stem)):
            if key in rows:
                found[image] = rows[key]
                unknown.pop(key, None)
                break
    return found, list(unknown)
