"""Puts a job on disk, whole or not at all: the config, and links to the images it can use."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import GH200Error
from ..preflight.samples import record_path
from .images import CAPTION, ImageDirectory

JOBS = "jobs"
SCHEMA = "docs/gh200_config.schema.json"
CONTACT_SHEET = "contact_sheet.png"
_TAKEN = frozenset({errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR})


class NameTaken(GH200Error):
    """There is a job of that name, perhaps since a moment."""

    def __init__(self, place: Path) -> None:
        super().__init__(
            "There is a job of that name; nothing of it was changed.",
            where=str(place),
            fix=f"choose another --name, or remove {JOBS}/{place.name}",
        )


def free_name(root: Path, wanted: str | None, directory: Path) -> str:
    """The name asked for, which must be free, or the directory's own with the first number that is."""
    if wanted is not None:
        if not re.fullmatch(r"\w[\w.-]*", wanted):
            raise GH200Error(
                f'"{wanted}" cannot be the name of a job.', where="--name", fix="use letters, digits, dots, - and _"
            )
        if os.path.lexists(root / JOBS / wanted):
            raise NameTaken(root / JOBS / wanted)
        return wanted
    base = re.sub(r"[^\w.-]+", "-", directory.resolve().name).strip("-.") or "job"
    return next(name for name in _numbered(base) if not os.path.lexists(root / JOBS / name))


def free_id(data: Path, name: str) -> str:
    """Upstream would go on with the resolution and the buckets of an earlier job of that name."""
    return next(way for way in _numbered(name) if not os.path.exists(record_path(data, way)))


def _numbered(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}-{number}" for number in itertools.count(2))


def needs_links(directory: ImageDirectory, captions_from: str) -> str:
    """Why training cannot read the directory itself, or nothing."""
    if directory.unusable:
        return f"{len(directory.unusable)} files cannot be used"
    if captions_from:
        return f"the captions are in {captions_from}"
    if not os.access(directory.root, os.W_OK):
        return "upstream keeps its list of buckets there, and the directory cannot be written"
    if directory.captions and directory.uncaptioned:
        return f"{len(directory.uncaptioned)} images have no caption"
    return ""


def write_job(
    root: Path,
    name: str,
    config: Mapping[str, Any],
    links: Mapping[str, str] | None,
    directory: ImageDirectory,
    sheet: bytes,
) -> Path:
    """`links` has a caption for every image to be linked; the job appears under its name in one step."""
    place = root / JOBS / name
    part = place.with_name(f".{name}.{os.getpid()}")
    # Of a process that had this number and was killed.
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        if links is not None:
            _link(part / "images", directory, links)
        schema = os.path.relpath(root / SCHEMA, place)
        (part / CONTACT_SHEET).write_bytes(sheet)
        text = json.dumps({"$schema": schema, **config}, indent=2, ensure_ascii=False)
        (part / "config.json").write_text(text + "\n", encoding="utf-8")
        part.rename(place)
    except OSError as error:
        if error.errno in _TAKEN and os.path.lexists(place):
            raise NameTaken(place) from error
        raise GH200Error(
            "The job could not be written; nothing of it was left.",
            where=str(place),
            why=f"{error.strerror or error}: {error.filename or ''}".rstrip(": "),
            fix="free some space, or make the directory writable",
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return place / "config.json"


def _link(target: Path, directory: ImageDirectory, captions: Mapping[str, str]) -> None:
    source = Path(os.path.abspath(directory.root))
    for name, caption in captions.items():
        link = target / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(source / name)
        if caption:
            link.with_suffix(CAPTION).write_text(caption, encoding="utf-8")
