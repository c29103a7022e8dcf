"""A picture's size from its header, as PIL's `open`, `size` and `getexif` would give it, turned as the EXIF orientation says."""

from __future__ import annotations

from typing import NamedTuple

from . import header_reader

Size = tuple[int, int]


class Header(NamedTuple):
    """What is known of a picture; without a size, `problem` says why. `deep`: more than 8 bits a channel."""

    size: Size | None
    format: str | None
    problem: str | None
    deep: bool = False


def header(path: str) -> Header:
    """Size, format and problem of the picture in this file; never raises."""
    return Header(*header_reader.read_file(path))


def header_of_bytes(data: bytes | memoryview) -> Header:
    """The same for a file that is in memory already."""
    return Header(*header_reader.read_bytes(data))
