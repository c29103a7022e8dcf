"""One growing memory file of an arena: files are appended inside the kernel, without page faults or the GIL."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .arena import memory_file
from .codecs import LARGEST_INPUT, SAMPLE_BYTES, WORTH_IT, Codec
from .listing import SourceFile

# Large files start on a page: the kernel then copies page by page.
_PAGE_ALIGNED_FROM = 64 << 10
_SAMPLED_FILES = 64
# A file's place in the index: its row, and a name of ordinary length.
_INDEX_BYTES = 128
# These come from the memory file, not from the file that is read.
_OUT_OF_MEMORY = frozenset({errno.ENOMEM, errno.ENOSPC})
_NO_SENDFILE = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})


class SourceChanged(Exception):
    """The file is not what the listing saw, or cannot be read; its message is the reason."""


class Placed(NamedTuple):
    """Where a file's bytes are in its segment."""

    offset: int
    stored: int
    compressed: bool


class MemorySegment:
    """Takes one file at a time; the kernel would let no more than one writer into a memory file either."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.descriptor = memory_file("data")
        self.position = 0
        self._lock = threading.Lock()

    def close(self) -> None:
        os.close(self.descriptor)

    def add(
        self, file: SourceFile, codec: Codec | None, admit: Callable[[int], bool], read_ahead: bool
    ) -> Placed | None:
        """Appends one file, if `admit` agrees to the size it will take; None if not."""
        try:
            source = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if read_ahead:
                    os.posix_fadvise(source, 0, 0, os.POSIX_FADV_WILLNEED)
                packed = _packed(source, file.size, codec) if codec is not None else None
                if not admit(room_for(file.size if packed is None else len(packed))):
                    return None
                with self._lock:
                    return self._append(source, file, packed)
            finally:
                os.close(source)
        except OSError as error:
            if error.errno in _OUT_OF_MEMORY:
                raise
            raise SourceChanged(error.strerror or str(error)) from error

    def _append(self, source: int, file: SourceFile, packed: bytes | None) -> Placed:
        start = self.position
        stored = file.size if packed is None else len(packed)
        try:
            offset = self._seek(_rounded_up(start, _alignment(stored)))
            if packed is None:
                self._copy(source, file.size)
            else:
                self._write(packed)
            status = os.fstat(source)
            if (status.st_size, status.st_mtime_ns) != (file.size, file.mtime_ns):
                raise SourceChanged("changed while it was staged")
        except (OSError, SourceChanged):
            os.ftruncate(self.descriptor, start)
            self._seek(start)
            raise
        return Placed(offset, stored, packed is not None)

    def _seek(self, position: int) -> int:
        self.position = os.lseek(self.descriptor, position, os.SEEK_SET)
        return position

    def _copy(self, source: int, size: int) -> None:
        copied = 0
        try:
            while copied < size:
                step = os.sendfile(self.descriptor, source, None, size - copied)
                if not step:
                    raise SourceChanged("became shorter while it was staged")
                copied += step
        except OSError as error:
            # Not every file system can hand its pages over.
            if error.errno not in _NO_SENDFILE or copied:
                raise
            self._write(_read(source, size))
            return
        self.position += size

    def _write(self, data: bytes | bytearray) -> None:
        view = memoryview(data)
        while view:
            step = os.write(self.descriptor, view)
            self.position += step
            view = view[step:]


def room_for(size: int) -> int:
    """The most a file of that size takes, with the gap before it."""
    return size + _alignment(size) - 1


def room_for_all(files: Sequence[SourceFile]) -> int:
    """The most the files take as they are, with their places in the index."""
    return sum(room_for(file.size) + _INDEX_BYTES for file in files)


def estimated_room(files: Sequence[SourceFile], codec: Codec) -> int:
    """What they take compressed. A single file must fit as it is: reading it back makes it whole again."""
    largest = max((file.size for file in files), default=0)
    return max(largest, int(room_for_all(files) * _estimated_ratio(files, codec)))


def _alignment(size: int) -> int:
    return 4096 if size >= _PAGE_ALIGNED_FROM else 64


def _rounded_up(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment


def _packed(source: int, size: int, codec: Codec) -> bytes | None:
    """The file compressed; None where it is compressed already, judged by its content."""
    if size > LARGEST_INPUT or not codec.pays_off(_sample(source, size)):
        return None
    packed = codec.compress(_read(source, size))
    return packed if len(packed) < WORTH_IT * size else None


def _read(source: int, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    filled = 0
    while filled < size:
        step = os.preadv(source, [view[filled:]], filled)
        if not step:
            raise SourceChanged("became shorter while it was staged")
        filled += step
    return data


def _sample(source: int, size: int) -> bytes:
    return os.pread(source, SAMPLE_BYTES, max(0, (size - SAMPLE_BYTES) // 2))


def _estimated_ratio(files: Sequence[SourceFile], codec: Codec) -> float:
    """Stored bytes per byte, judged by samples of some files, weighted by size."""
    step = max(1, len(files) // _SAMPLED_FILES)
    before = after = 0.0
    for file in files[::step]:
        try:
            source = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            sample = _sample(source, file.size)
        finally:
            os.close(source)
        if sample:
            ratio = len(codec.compress(sample)) / len(sample)
            before += file.size
            after += file.size * (ratio if ratio < WORTH_IT and file.size <= LARGEST_INPUT else 1.0)
    return after / before if before else 1.0
