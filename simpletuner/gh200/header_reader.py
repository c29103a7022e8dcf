"""The reader of headers: JPEG, PNG and WebP are read here, whatever is unusual about a file by PIL.

It is also a program that answers batches of paths on its standard input. A dozen of them start for one scan, so it imports
little of the standard library, and PIL when needed.
"""

from __future__ import annotations

import io
import marshal
import os
import stat
import struct
import sys
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO, Any

    Size = tuple[int, int]
    # As `headers.Header` has it: size, format, problem, deep.
    Found = tuple[Size | None, str | None, str | None, bool]
    Reader = Callable[[int, int], bytes]

FIRST_READ = 8192
# PIL warns above this many pixels and refuses twice as many: both are its own to say.
MOST_PIXELS = 89_478_485
_TURNED = (5, 6, 7, 8)
_XMP = b"http://ns.adobe.com/xap/1.0/\x00"
_PNG_MODES = (
    {(b, 0) for b in (1, 2, 4, 8, 16)} | {(b, 3) for b in (1, 2, 4, 8)} | {(b, c) for b in (8, 16) for c in (2, 4, 6)}
)
_ORIENTATION, _SHORT = 0x0112, 3
_SEGMENT = struct.Struct(">HH")
_TIFF_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4}


class _Doubt(Exception):
    """Not one of the plain cases: PIL decides."""


class _File:
    """An open file; how long it is, is asked only when its first bytes are not enough."""

    def __init__(self, handle: int) -> None:
        self._handle, self._at, self._size = handle, 0, -1
        self.start = self._window = os.pread(handle, FIRST_READ, 0)

    def size(self) -> int:
        if self._size < 0:
            self._size = os.fstat(self._handle).st_size
        return self._size

    def read(self, offset: int, count: int) -> bytes:
        if offset + count > self.size():
            raise _Doubt("ends too early")
        if offset < self._at or offset + count > self._at + len(self._window):
            self._at, self._window = offset, os.pread(self._handle, max(count, 4096), offset)
        return _whole(self._window[offset - self._at : offset - self._at + count], count)


class _Memory:
    def __init__(self, data: bytes | memoryview) -> None:
        self._view = memoryview(data)
        self.start = bytes(self._view[:FIRST_READ])

    def size(self) -> int:
        return len(self._view)

    def read(self, offset: int, count: int) -> bytes:
        return _whole(bytes(self._view[offset : offset + count]), count)


def read_file(path: str) -> Found:
    """Never raises."""
    try:
        # A pipe that somebody left in a dataset must not stop the scan.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        return _none(_words(error))
    try:
        return _plain(_File(handle))
    except (_Doubt, struct.error, IndexError):
        problem = _nothing_to_read(handle)
        return _by_pil(path) if problem is None else _none(problem)
    except OSError as error:
        return _none(_nothing_to_read(handle) or _words(error))
    finally:
        os.close(handle)


def read_bytes(data: bytes | memoryview) -> Found:
    try:
        return _plain(_Memory(data))
    except (_Doubt, struct.error, IndexError):
        return _by_pil(io.BytesIO(data))


def _none(problem: str, kind: str | None = None) -> Found:
    return None, kind, problem, False


def _nothing_to_read(handle: int) -> str | None:
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        return "is not a regular file"
    return None if status.st_size else "is empty (0 bytes)"


def _words(error: Exception) -> str:
    kind = type(error).__name__
    known = {
        "UnidentifiedImageError": "is no picture that can be read",
        "DecompressionBombError": "has more pixels than Pillow opens",
    }
    return known.get(kind) or f"cannot be read: {getattr(error, 'strerror', None) or str(error) or kind}"


def _whole(data: bytes, count: int) -> bytes:
    if len(data) < count:
        raise _Doubt("ends too early")
    return data


def _plain(source: _File | _Memory) -> Found:
    deep, start = False, source.start
    if len(start) < 12:
        raise _Doubt("ends too early")
    if start.startswith(b"\xff\xd8\xff"):
        size, kind = _jpeg(source.read, start), "JPEG"
    elif start.startswith(b"\x89PNG\r\n\x1a\n"):
        (size, deep), kind = _png(source.read), "PNG"
    elif start.startswith(b"RIFF") and start.startswith(b"WEBP", 8):
        size, kind = _webp(source.read, source.size()), "WEBP"
    else:
        raise _Doubt("another format")
    if min(size) <= 0 or size[0] * size[1] > MOST_PIXELS:
        raise _Doubt("an unusual size")
    return size, kind, None, deep


def _jpeg(read: Reader, window: bytes) -> Size:
    """PIL reads every segment up to the first scan, so one that stands in the way there must do so here.

    Within the window, the start of the file, it costs a fraction of a read.
    """
    offset, size, exif, end = 2, None, None, len(window)
    while True:
        mark, count = _SEGMENT.unpack_from(window, offset) if offset + 4 <= end else _SEGMENT.unpack(read(offset, 4))
        marker = mark & 0xFF
        if mark >> 8 != 0xFF:
            raise _Doubt("junk between segments")
        if count < 2:
            raise _Doubt("an empty segment")
        body = offset + 4
        offset += 2 + count
        if marker == 0xDA:
            if offset > end:
                read(body, count - 2)
            break
        if marker == 0xC4 or marker in (0xCC, 0xDD, 0xFE):
            continue
        # Of what only says whose it is, the beginning will do.
        needed = count - 2 if marker <= 0xE1 else min(count - 2, 16)
        data = window[body:offset] if offset <= end else read(body, needed)
        if marker == 0xDB:
            if (count - 2) % 65 or any(table >> 4 for table in data[::65]):
                raise _Doubt("unusual tables")
        elif 0xC0 <= marker <= 0xCF and marker != 0xC8:
            bits, height, width, layers = struct.unpack_from(">BHHB", data)
            if size is not None or bits != 8 or layers not in (1, 3, 4) or count != 8 + 3 * layers:
                raise _Doubt("an unusual frame")
            size = width, height
        elif marker == 0xE1 and count > 8:
            if data.startswith(b"Exif\0\0"):
                if exif is not None:
                    raise _Doubt("two EXIF blocks")
                exif = data
            elif data.startswith(_XMP):
                _without_orientation(data)
        elif marker in (0xE0, 0xE2, 0xED, 0xEE) and count < 16:
            raise _Doubt("a short segment of a known application")
        elif marker == 0xE2 and data.startswith(b"MPF\0"):
            raise _Doubt("several pictures in one file")
        elif not 0xE0 <= marker <= 0xEF:
            raise _Doubt("an unusual marker")
    if size is None:
        raise _Doubt("no frame before the first scan")
    return _turned(size, exif)


def _png(read: Reader) -> tuple[Size, bool]:
    """To the end of the file, as PIL does, since EXIF may stand behind the pixels; checksums instead of decoding."""
    offset, size, exif, kind, deep = 8, None, None, b"", False
    while kind != b"IEND":
        count, kind = struct.unpack(">I4s", read(offset, 8))
        body = read(offset + 8, count + 4)
        if zlib.crc32(memoryview(body)[:count], zlib.crc32(kind)) != int.from_bytes(body[count:]):
            raise _Doubt("a wrong checksum")
        offset += count + 12
        if (size is None) != (kind == b"IHDR"):
            raise _Doubt("the header does not stand first")
        if kind == b"IHDR":
            width, height, depth, colour, packing, filtering, interlace = struct.unpack(">IIBBBBB", body[:count])
            if (depth, colour) not in _PNG_MODES or packing or filtering or interlace > 1:
                raise _Doubt("an unusual header")
            size, deep = (width, height), depth > 8
        elif kind == b"eXIf":
            if exif is not None:
                raise _Doubt("two EXIF blocks")
            exif = body[:count]
        elif kind in (b"zTXt", b"acTL", b"fcTL", b"fdAT") or (kind == b"iTXt" and b"xmp" in body[:count]):
            raise _Doubt("packed text, metadata in text, or an animation")
        elif kind == b"tEXt" and (count > 1 << 20 or body.startswith(b"Raw profile type")):
            raise _Doubt("metadata in text")
        elif kind[0] < 0x61 and kind not in (b"PLTE", b"IDAT", b"IEND"):
            raise _Doubt("an unknown critical chunk")
    assert size is not None
    return _turned(size, exif), deep


def _webp(read: Reader, length: int) -> Size:
    end = int.from_bytes(read(4, 4), "little") + 8
    if end > length or end % 2:
        raise _Doubt("ends too early")
    offset, canvas, size, exif, told = 12, None, None, None, False
    while offset < end:
        kind, count = struct.unpack("<4sI", read(offset, 8))
        body, offset = offset + 8, offset + 8 + count + count % 2
        if offset > end:
            raise _Doubt("a chunk reaches beyond the file")
        if kind == b"VP8X" and body == 20:
            flags = read(body, 10)
            if flags[0] & 0xC3:
                raise _Doubt("an animation, or a flag nobody knows")
            told = bool(flags[0] & 0x08)
            canvas = 1 + int.from_bytes(flags[4:7], "little"), 1 + int.from_bytes(flags[7:10], "little")
        elif kind in (b"VP8 ", b"VP8L") and size is None:
            size = _webp_lossy(read(body, 10), count) if kind == b"VP8 " else _webp_lossless(read(body, 5))
        elif kind == b"EXIF" and exif is None:
            exif = read(body, count)
        elif kind == b"XMP ":
            _without_orientation(read(body, count))
        elif kind not in (b"ALPH", b"ICCP"):
            raise _Doubt("an unusual chunk")
    # Only metadata that the first chunk tells of is read; without such a chunk the picture stands alone.
    if size is None or canvas not in (None, size) or told != (exif is not None) or (canvas is None and body != 20):
        raise _Doubt("an unusual file")
    return _turned(size, exif)


def _webp_lossy(start: bytes, count: int) -> Size:
    bits = int.from_bytes(start[:3], "little")
    if bits & 1 or (bits >> 1 & 7) > 3 or not bits >> 4 & 1 or bits >> 5 >= count or start[3:6] != b"\x9d\x01\x2a":
        raise _Doubt("an unusual frame")
    width, height = struct.unpack("<HH", start[6:])
    return width & 0x3FFF, height & 0x3FFF


def _webp_lossless(start: bytes) -> Size:
    bits = int.from_bytes(start[1:], "little")
    if start[0] != 0x2F or bits >> 29:
        raise _Doubt("an unusual frame")
    return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1


def _without_orientation(xmp: bytes) -> None:
    if b"Orientation" in xmp:
        raise _Doubt("an orientation in XMP")


def _turned(size: Size, exif: bytes | None) -> Size:
    return (size[1], size[0]) if exif and _orientation(exif.removeprefix(b"Exif\0\0")) in _TURNED else size


def _orientation(tiff: bytes) -> int | None:
    """The tag of the first directory; what PIL might read otherwise is left to it."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    if order is None:
        raise _Doubt("unusual EXIF")
    at = struct.unpack(order + "I", tiff[4:8])[0]
    count = struct.unpack_from(order + "H", tiff, at)[0]
    entries = [struct.unpack_from(order + "HHI4s", tiff, at + 2 + 12 * number) for number in range(count)]
    found = [struct.unpack(order + "H", value[:2])[0] for tag, _, _, value in entries if tag == _ORIENTATION]
    if not found:
        return None
    for tag, kind, items, value in entries:
        space = _TIFF_BYTES.get(kind, len(tiff)) * items
        # PIL stops reading at an entry whose values lie outside.
        outside = space > 4 and struct.unpack(order + "I", value)[0] + space > len(tiff)
        if outside or (tag == _ORIENTATION and (kind, items) != (_SHORT, 1)) or len(found) > 1:
            raise _Doubt("an unusual directory")
    return int(found[0])


def _pil() -> Any:
    from PIL import Image

    try:
        # Upstream reads this format too, where it is installed.
        import pillow_jxl  # noqa: F401
    except ImportError:
        pass
    return Image


def _by_pil(source: str | io.BytesIO) -> Found:
    try:
        with _pil().open(source) as image:
            size, kind = image.size, image.format
            deep = image.mode.startswith(("I", "F"))
            turned = image.getexif().get(_ORIENTATION) in _TURNED
    except Exception as error:
        return _none(_words(error))
    if not size[0] or not size[1]:
        return _none("has a side of no length", kind)
    return (size[1], size[0]) if turned else size, kind, None, deep


def send(stream: IO[bytes], value: Any) -> None:
    """In one piece with its length before it: `marshal.load` would ask the stream for a few bytes at a time."""
    data = marshal.dumps(value)
    stream.write(len(data).to_bytes(8) + data)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """EOFError where the other side has gone."""
    return marshal.loads(stream.read(int.from_bytes(stream.read(8))))


def serve(questions: IO[bytes], answers: IO[bytes]) -> None:
    """Lists of paths in, lists of what was found out, until the other side closes or is gone."""
    try:
        while True:
            send(answers, [read_file(path) for path in receive(questions)])
    except EOFError:
        return
    except BrokenPipeError:
        # Nobody is left to read what the interpreter would still write at its end.
        os._exit(1)


if __name__ == "__main__":
    sys.path += sys.argv[1:]
    serve(sys.stdin.buffer, sys.stdout.buffer)
