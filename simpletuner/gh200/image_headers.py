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
from functools import cache
from typing import IO, Any, NamedTuple

Size = tuple[int, int]

FIRST_READ = 8192
# A FIFO in a dataset must not block the scan.
_WITHOUT_WAITING = os.O_RDONLY | os.O_NONBLOCK
# Pillow warns above this many pixels and rejects twice as many: both are its own to report.
_MOST_PIXELS = 89_478_485
_SEGMENT, _FRAME = struct.Struct(">HH"), struct.Struct(">BHHB")
# Huffman tables, restart interval, comment.
_PASSED_OVER = (0xFFC4, 0xFFDD, 0xFFFE)
_ORIENTATION, _TURNED = 0x0112, (5, 6, 7, 8)
_PROBLEMS = {
    "UnidentifiedImageError": "is no image that can be read",
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
        handle = os.open(path, _WITHOUT_WAITING)
    except (OSError, ValueError) as error:
        return Header(None, None, _problem(error))
    try:
        # What the file is, and a file object: each costs a fifth of all the rest of a plain JPEG.
        if (plain := _plain_jpeg(_start(handle))) is not None:
            return Header(plain, "JPEG", None)
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            return Header(None, None, NOT_REGULAR)
        if not status.st_size:
            return Header(None, None, "is empty (0 bytes)")
        with open(handle, "rb", closefd=False) as file:
            return _by_pillow(file)
    finally:
        os.close(handle)


def _start(handle: int) -> bytes:
    try:
        return os.read(handle, FIRST_READ)
    except OSError:  # no regular file, or one that Pillow cannot read either
        return b""


def header_of_bytes(data: bytes) -> Header:
    """The same for a file that is in memory already."""
    plain = _plain_jpeg(data[:FIRST_READ])
    return Header(plain, "JPEG", None) if plain is not None else _by_pillow(io.BytesIO(data))


def _by_pillow(file: IO[bytes]) -> Header:
    try:
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
    if not start.startswith(b"\xff\xd8\xff"):
        return None
    offset, size, end = 2, None, len(start)
    while offset + 4 <= end:
        mark, count = _SEGMENT.unpack_from(start, offset)
        body, offset = offset + 4, offset + 2 + count
        if mark < 0xFF00 or count < 2 or offset > end:
            return None
        if mark in _PASSED_OVER:
            continue
        if mark == 0xFFDA:
            return size
        if mark == 0xFFDB:
            if (count - 2) % 65 or any(table >> 4 for table in start[body:offset:65]):
                return None
        elif 0xFFC0 <= mark <= 0xFFC2 and count >= 8 and size is None:
            bits, height, width, layers = _FRAME.unpack_from(start, body)
            size = (width, height)
            if bits != 8 or layers not in (1, 3, 4) or count != 8 + 3 * layers:
                return None
            if not 0 < width * height <= _MOST_PIXELS:
                return None
        elif mark != 0xFFE0 or count < 16:
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
