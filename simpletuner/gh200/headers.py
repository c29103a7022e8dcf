"""An image's size from its header, as Pillow's `open`, `size` and `getexif` give it, with the EXIF orientation applied.

It is also a program that answers batches of paths on its standard input, so it imports nothing of the fork's. A plain JPEG is
read without Pillow, which would double the CPU time of a dataset's scan.
"""

from __future__ import annotations

import io
import marshal
import os
import stat
import struct
import sys
from collections.abc import Callable
from functools import cache
from typing import IO, Any, NamedTuple

Size = tuple[int, int]

FIRST_READ = 8192
# Pillow warns above this many pixels and rejects twice as many: both are its own to report.
_MOST_PIXELS = 89_478_485
_SEGMENT, _FRAME = struct.Struct(">HH"), struct.Struct(">BHHB")
_ORIENTATION, _TURNED = 0x0112, (5, 6, 7, 8)
_PROBLEMS = {
    "UnidentifiedImageError": "is no picture that can be read",
    "DecompressionBombError": "has more pixels than Pillow opens",
}
NOT_REGULAR = "is not a regular file"


class Header(NamedTuple):
    """What is known of an image; without a size, `problem` says why."""

    size: Size | None
    format: str | None
    problem: str | None


def header(path: str) -> Header:
    """Never raises."""
    try:
        # A FIFO in a dataset must not block the scan.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        return Header(None, None, _problem(error))
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or not status.st_size:
        os.close(handle)
        return Header(None, None, "is empty (0 bytes)" if stat.S_ISREG(status.st_mode) else NOT_REGULAR)
    with open(handle, "rb", FIRST_READ) as file:
        return _header(file.read(FIRST_READ), lambda: file)


def header_of_bytes(data: bytes | memoryview) -> Header:
    """The same for a file that is in memory already; only Pillow needs a copy of it."""
    return _header(bytes(data[:FIRST_READ]), lambda: io.BytesIO(data))


def _header(start: bytes, opened: Callable[[], IO[bytes]]) -> Header:
    try:
        if (plain := _plain_jpeg(start)) is not None:
            return Header(plain, "JPEG", None)
        file = opened()
        file.seek(0)
        with _pillow().open(file) as image:
            size, kind = image.size, image.format
            turned = _exif(image, file).get(_ORIENTATION) in _TURNED
    except Exception as error:  # Pillow's readers raise whatever a damaged file makes of them
        return Header(None, None, _problem(error))
    if not size[0] or not size[1]:
        return Header(None, kind, "has a side of no length")
    return Header((size[1], size[0]) if turned else size, kind, None)


def _plain_jpeg(start: bytes) -> Size | None:
    """None, and Pillow decides: another format, a rotation, anything unusual, or a header that goes on behind the start."""
    offset, size, end = 2, None, len(start)
    while start.startswith(b"\xff\xd8\xff") and offset + 4 <= end:
        mark, count = _SEGMENT.unpack_from(start, offset)
        body, offset, marker = offset + 4, offset + 2 + count, mark & 0xFF
        if mark < 0xFF00 or count < 2 or offset > end:
            return None
        if marker == 0xDA:
            return size
        if 0xC0 <= marker <= 0xC2 and count >= 8 and size is None:
            bits, height, width, layers = _FRAME.unpack_from(start, body)
            size = (width, height)
            if bits != 8 or layers not in (1, 3, 4) or count != 8 + 3 * layers:
                return None
            if not 0 < width * height <= _MOST_PIXELS:
                return None
        elif marker == 0xDB:
            if (count - 2) % 65 or any(table >> 4 for table in start[body:offset:65]):
                return None
        elif marker not in (0xC4, 0xDD, 0xE0, 0xFE) or (marker == 0xE0 and count < 16):
            return None
    return None


def _exif(image: Any, file: IO[bytes]) -> Any:
    """Pillow decodes a PNG to look for EXIF behind the pixels; checksums show whether anything is there at a tenth of the cost."""
    if image.format != "PNG" or "exif" in image.info:
        return image.getexif()
    if _only_pixels_behind(image, file):
        return _pillow().Image.getexif(image)
    file.seek(0)
    with _pillow().open(file) as again:
        return again.getexif()


def _only_pixels_behind(image: Any, file: IO[bytes]) -> bool:
    try:
        file.seek(image.tile[0].offset - 8)
        return not image.is_animated and set(image.png.verify()) == {b"IDAT"}
    except Exception:  # a damaged file: its decoder decides
        return False


@cache
def _pillow() -> Any:
    from PIL import Image

    try:
        # SimpleTuner reads this format too, where it is installed.
        import pillow_jxl  # noqa: F401
    except ImportError:
        pass
    return Image


def _problem(error: Exception) -> str:
    kind = type(error).__name__
    return _PROBLEMS.get(kind) or f"cannot be read: {getattr(error, 'strerror', None) or str(error) or kind}"


def send(stream: IO[bytes], value: Any) -> None:
    """In one piece with its length before it: `marshal.load` would ask the stream for a few bytes at a time."""
    data = marshal.dumps(value)
    stream.write(len(data).to_bytes(8) + data)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """EOFError where the other side has gone."""
    return marshal.loads(stream.read(int.from_bytes(stream.read(8))))


def serve(questions: IO[bytes], answers: IO[bytes]) -> None:
    """Lists of paths in, lists of headers out, until the other side closes or is gone."""
    try:
        while True:
            send(answers, [tuple(header(path)) for path in receive(questions)])
    except EOFError:
        return
    except BrokenPipeError:
        # Nobody is left to read what the interpreter would still write at its end.
        os._exit(1)


if __name__ == "__main__":
    sys.path += sys.argv[1:]
    serve(sys.stdin.buffer, sys.stdout.buffer)
