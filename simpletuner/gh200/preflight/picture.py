"""One picture by its header: how large it will be to upstream, or why it cannot be used."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass

from PIL import Image

from ..headers import header

_TAIL = 64


@dataclass(frozen=True)
class Picture:
    """`size` is width and height as they are seen, with the camera's orientation applied; (0, 0) with a problem."""

    size: tuple[int, int]
    format: str
    deep: bool
    problem: str = ""


def look(path: str | os.PathLike[str]) -> Picture:
    """By the reader that the scan of a dataset uses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = header(os.fspath(path))
    return Picture(found.size or (0, 0), found.format or "", found.deep, found.problem or "")


def damage(path: str | os.PathLike[str]) -> str:
    """Why the picture's body cannot be read, or nothing; decodes only where the end of the file is not the format's."""
    if _ends_well(path):
        return ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(path) as image:
                image.load()
    except Exception as error:  # Pillow's readers raise whatever a damaged file makes of them
        return f"is damaged: {error}"
    return ""


def _ends_well(path: str | os.PathLike[str]) -> bool:
    with open(path, "rb") as file:
        start = file.read(4)
        file.seek(max(0, os.path.getsize(path) - _TAIL))
        end = file.read()
    if start.startswith(b"\xff\xd8"):
        return end.rstrip(b"\0").endswith(b"\xff\xd9")
    return start.startswith(b"\x89PNG") and b"IEND" in end
