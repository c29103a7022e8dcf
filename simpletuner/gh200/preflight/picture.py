"""One picture by its header: how large it will be to upstream, or why it cannot be used. The one place that looks."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass

from PIL import Image, UnidentifiedImageError

_ORIENTATION = 0x0112
_TURNED = frozenset({5, 6, 7, 8})
_TAIL = 64


@dataclass(frozen=True)
class Picture:
    """`size` is width and height as they are seen, with the camera's orientation applied; (0, 0) with a problem."""

    size: tuple[int, int]
    format: str
    mode: str
    problem: str = ""


def look(path: str | os.PathLike[str]) -> Picture:
    """Reads the header; nothing is decoded."""
    try:
        if not os.path.getsize(path):
            return Picture((0, 0), "", "", "is empty (0 bytes)")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(path) as image:
                width, height = image.size
                turned = _orientation(image) in _TURNED
                return Picture((height, width) if turned else (width, height), image.format or "", image.mode)
    except UnidentifiedImageError:
        return Picture((0, 0), "", "", "is no picture that can be read")
    except Image.DecompressionBombError:
        return Picture((0, 0), "", "", "has more pixels than Pillow opens")
    except Exception as error:  # Pillow's readers raise whatever a damaged header makes of them
        return Picture((0, 0), "", "", f"cannot be read: {getattr(error, 'strerror', None) or error}")


def _orientation(image: Image.Image) -> int:
    # getexif() of a PNG decodes it to look behind the pixels.
    raw = image.info.get("exif")
    if image.format == "PNG" and not raw:
        return 1
    exif = Image.Exif()
    if isinstance(raw, bytes):
        exif.load(raw)
    else:
        exif = image.getexif()
    found = exif.get(_ORIENTATION, 1)
    return found if isinstance(found, int) else 1


def damage(path: str | os.PathLike[str]) -> str:
    """Why the picture's body cannot be read, or nothing; decodes only where the end of the file is not the format's."""
    if _ends_well(path):
        return ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(path) as image:
                image.load()
    except Exception as error:  # as above
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
