"""Puts a job on disk, whole or not at all: the config, the adapter's file, and links to the pictures it can use."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import GH200Error
from .folder import CAPTION, Folder

JOBS = "jobs"


def free_name(root: Path, wanted: str | None, folder: Path) -> str:
    """The name asked for, which must be free, or the folder's own with the first number that is."""
    if wanted is not None:
        if not re.fullmatch(r"\w[\w.-]*", wanted):
            raise GH200Error(
                f'"{wanted}" cannot be the name of a job.', where="--name", fix="use letters, digits, dots, - and _"
            )
        if (root / JOBS / wanted).exists():
            raise GH200Error(
                "There is a job of that name; nothing of it was changed.",
                where=str(root / JOBS / wanted),
                fix=f"choose another --name, or remove {JOBS}/{wanted}",
            )
        return wanted
    base = re.sub(r"[^\w.-]+", "-", folder.resolve().name).strip("-.") or "job"
    names: Iterator[str] = (base if number == 1 else f"{base}-{number}" for number in range(1, 10_000))
    return next(name for name in names if not (root / JOBS / name).exists())


def needs_links(folder: Folder, captions_from: str) -> str:
    """Why training cannot read the folder itself, or nothing."""
    if folder.unusable:
        return f"{len(folder.unusable)} files cannot be used"
    if captions_from:
        return f"the captions are in {captions_from}"
    if not os.access(folder.root, os.W_OK):
        return "upstream keeps its list of buckets there, and the folder cannot be written"
    if folder.captions and folder.uncaptioned:
        return f"{len(folder.uncaptioned)} pictures have no caption"
    return ""


def write_job(
    root: Path, name: str, config: Mapping[str, Any], lycoris: Mapping[str, Any] | None, schema: str,
    links: Mapping[str, str] | None, folder: Folder,
) -> Path:  # fmt: skip
    """`links` has a caption for every picture to be linked; the job appears under its name in one step."""
    place = root / JOBS / name
    part = place.with_name(f".{name}.{os.getpid()}")
    try:
        part.mkdir(parents=True)
        if links is not None:
            _link(part / "images", folder, links)
        if lycoris is not None:
            _json(part / "lycoris.json", lycoris)
        _json(part / "config.json", {"$schema": schema, **config})
        part.rename(place)
    except OSError as error:
        raise GH200Error(
            "The job could not be written; nothing of it was left.",
            where=str(place),
            why=f"{error.strerror or error}: {error.filename or ''}".rstrip(": "),
            fix="make room, or make the folder writable",
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return place / "config.json"


def _json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _link(target: Path, folder: Folder, captions: Mapping[str, str]) -> None:
    source = Path(os.path.abspath(folder.root))
    for name, caption in captions.items():
        link = target / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(source / name)
        text = link.with_suffix(CAPTION)
        if caption and not text.exists():
            text.write_text(caption, encoding="utf-8")
