"""One PNG of what will be trained: the most cropped images first, each resized and cropped as upstream will do it."""

from __future__ import annotations

import io
from collections.abc import Mapping
from math import ceil

from PIL import Image, ImageOps

from ..preflight.buckets import Rules, Size
from .images import ImageDirectory

MOST_IMAGES = 60
_COLUMNS, _CELL, _GAP = 10, 128, 4


def most_cropped(sizes: Mapping[str, Size], rules: Rules) -> list[tuple[float, str]]:
    """What each image loses of its area, the most first."""
    return sorted(((rules.lost(size), name) for name, size in sizes.items()), key=lambda one: (-one[0], one[1]))


def contact_sheet(directory: ImageDirectory, rules: Rules) -> bytes:
    """The sheet as a PNG file."""
    names = [name for _, name in most_cropped(directory.sizes, rules)][:MOST_IMAGES]
    side = _CELL + _GAP
    columns = min(_COLUMNS, len(names))
    sheet = Image.new("RGB", (columns * side + _GAP, ceil(len(names) / columns) * side + _GAP), "white")
    for number, name in enumerate(names):
        row, column = divmod(number, columns)
        sheet.paste(_cropped(directory, name, rules), (_GAP + column * side, _GAP + row * side))
    written = io.BytesIO()
    sheet.save(written, "PNG")
    return written.getvalue()


def _cropped(directory: ImageDirectory, name: str, rules: Rules) -> Image.Image:
    target = rules.target(directory.sizes[name])
    with Image.open(directory.root / name) as opened:
        opened.draft("RGB", (2 * _CELL, 2 * _CELL))
        # Upstream centres the crop, as the job asks for it.
        image = ImageOps.fit(ImageOps.exif_transpose(opened).convert("RGB"), target, Image.Resampling.BICUBIC)
    image.thumbnail((_CELL, _CELL))
    return image
