"""One growing memory file of an arena: files are appended inside the kernel, without page faults or the GIL."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .arena import BLOCK_LENGTH
from .budget import StagingBudget
from .codecs import SAMPLE_BYTES, WORTH_IT, Codec
from .listing import SourceFile, open_regular
from .memory_files import DATA, memory_file

# Large files start on a page, of 4 or 64 KB: the kernel then copies page by page.
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PAGES_OF_A_LARGE_FILE = 16
_SAMPLED_FILES = 64
# A file's place in the index: its row, its slots in the tables, and a name of ordinary length.
_INDEX_BYTES = 192
# These come from the memory file, not from the file that is read: no memory, or a limit of the shell (ulimit -f).
_NOT_THE_SOURCE = frozenset({errno.ENOMEM, errno.ENOSPC, errno.EFBIG})
_NO_SENDFILE = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
# What is compressed, and copied, at once: a file of any size needs no more buffer than this.
BLOCK_BYTES = 4 << 20
_STEP_BYTES = 64 << 20
# A file may compress somewhat worse than its middle.
_CAUTION = 1.3


class SourceChanged(Exception):
    """The file is not what the listing saw, or cannot be read; its message is the reason."""


class Placed(NamedTuple):
    """Where a file's bytes are in its segment, and the file's times when they were read."""

    offset: int
    stored: int
    blocks: int
    mtime_ns: int
    ctime_ns: int


class MemorySegment:
    """Takes one file at a time; the kernel would let no more than one writer into a memory file either."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.descriptor = memory_file(DATA)
        self.position = 0
        self._lock = threading.Lock()

    def close(self) -> None:
        """Frees the memory file."""
        os.close(self.descriptor)

    def add(
        self,
        file: SourceFile,
        codec: Codec | None,
        budget: StagingBudget,
        read_ahead: bool,
        moved: Callable[[int], None] = lambda size: None,
    ) -> Placed | None:
        """Appends one file if it fits into the budget; None if not. `moved` is called for every part that was read."""
        try:
            source = open_regular(file.path)
            try:
                if read_ahead:
                    os.posix_fadvise(source, 0, 0, os.POSIX_FADV_WILLNEED)
                return self._added(source, file, codec, budget, moved)
            finally:
                os.close(source)
        except OSError as error:
            if error.errno in _NOT_THE_SOURCE:
                raise
            raise SourceChanged(error.strerror or str(error)) from error

    def _added(
        self,
        source: int,
        file: SourceFile,
        codec: Codec | None,
        budget: StagingBudget,
        moved: Callable[[int], None],
    ) -> Placed | None:
        before = os.fstat(source)
        if (before.st_size, before.st_mtime_ns) != (file.size, file.mtime_ns):
            raise SourceChanged("changed since the directory was listed")
        if not file.size and os.pread(source, 1, 0):
            raise SourceChanged("its file system does not say how large it is")
        ratio = codec.ratio(_sample(source, file.size)) if codec is not None else 1.0
        if codec is not None and ratio < WORTH_IT:
            most = min(WORTH_IT * file.size, _CAUTION * ratio * file.size + SAMPLE_BYTES)
            reserved = int(most) + _buffer_bytes(file.size)
            if budget.reserve(reserved):
                kept = 0
                try:
                    packed = _packed(source, file.size, codec, int(most), moved)
                    placed = self._appended(source, before, packed, moved) if packed else None
                    kept = _padded(placed.stored) if placed else 0
                finally:
                    budget.settle(reserved, kept)
                if placed:
                    return placed
        if not budget.reserve(_padded(file.size)):
            return None
        kept = 0
        try:
            placed = self._appended(source, before, [], moved)
            kept = _padded(file.size)
        finally:
            budget.settle(_padded(file.size), kept)
        return placed

    def _appended(
        self, source: int, before: os.stat_result, packed: list[bytes], moved: Callable[[int], None]
    ) -> Placed:
        stored = sum(map(len, packed)) if packed else before.st_size
        # Several blocks have their lengths in front, as one more part.
        blocks = len(packed) if len(packed) < 2 else len(packed) - 1
        with self._lock:
            start = self.position
            try:
                offset = self._seek(_rounded_up(start, _alignment(stored)))
                while packed:
                    self._write(packed.pop(0))
                if not blocks:
                    self._copy(source, before.st_size, moved)
                if _times(os.fstat(source)) != _times(before):
                    raise SourceChanged("changed while it was staged")
            except (OSError, SourceChanged):
                os.ftruncate(self.descriptor, start)
                self._seek(start)
                raise
        return Placed(offset, stored, blocks, before.st_mtime_ns, before.st_ctime_ns)

    def _seek(self, position: int) -> int:
        self.position = os.lseek(self.descriptor, position, os.SEEK_SET)
        return position

    def _copy(self, source: int, size: int, moved: Callable[[int], None]) -> None:
        copied = 0
        try:
            while copied < size:
                step = os.sendfile(self.descriptor, source, None, min(size - copied, _STEP_BYTES))
                if not step:
                    raise SourceChanged("became shorter while it was staged")
                copied += step
                self.position += step
                moved(step)
        except OSError as error:
            # Not every file system can hand its pages over.
            if error.errno not in _NO_SENDFILE or copied:
                raise
            for start in range(0, size, BLOCK_BYTES):
                data = _read(source, start, min(BLOCK_BYTES, size - start))
                self._write(data)
                moved(len(data))

    def _write(self, data: bytes | bytearray) -> None:
        view = memoryview(data)
        while view:
            step = os.write(self.descriptor, view)
            self.position += step
            view = view[step:]


def _padded(size: int) -> int:
    """The most a file of that size takes, with the gap before it."""
    return size + _alignment(size) - 1


def bytes_for_all(files: Sequence[SourceFile]) -> int:
    """The most the files take as they are, with their places in the index."""
    return sum(_padded(file.size) + _INDEX_BYTES for file in files)


def estimated_bytes(files: Sequence[SourceFile], codec: Codec) -> int:
    """What they take compressed. A single file must fit as it is: reading it back makes it whole again."""
    largest = max((file.size for file in files), default=0)
    return max(largest, _buffer_bytes(largest) + int(bytes_for_all(files) * estimated_ratio(files, codec)))


def _alignment(size: int) -> int:
    return _PAGE if size >= _PAGES_OF_A_LARGE_FILE * _PAGE else 64


def _rounded_up(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment


def _buffer_bytes(size: int) -> int:
    """What compressing takes at a time: one block as it is, and what the codec makes of it."""
    return 2 * min(size, BLOCK_BYTES) + SAMPLE_BYTES


def _packed(source: int, size: int, codec: Codec, most: int, moved: Callable[[int], None]) -> list[bytes]:
    """The file compressed, block by block, with their lengths in front if there are several; nothing if above `most`."""
    parts: list[bytes] = []
    length = 0
    for start in range(0, size, BLOCK_BYTES):
        data = _read(source, start, min(BLOCK_BYTES, size - start))
        parts.append(codec.compress(data))
        length += len(parts[-1])
        if length > most:
            return []
        moved(len(data))
    return parts if len(parts) == 1 else [b"".join(BLOCK_LENGTH.pack(len(part)) for part in parts), *parts]


def _times(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _read(source: int, start: int, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    filled = 0
    while filled < size:
        step = os.preadv(source, [view[filled:]], start + filled)
        if not step:
            raise SourceChanged("became shorter while it was staged")
        filled += step
    return data


def _sample(source: int, size: int) -> bytes:
    return os.pread(source, SAMPLE_BYTES, max(0, (size - SAMPLE_BYTES) // 2))


def estimated_ratio(files: Sequence[SourceFile], codec: Codec) -> float:
    """Stored bytes per byte, judged by samples of some files, weighted by size."""
    step = max(1, len(files) // _SAMPLED_FILES)
    before = after = 0.0
    for file in files[::step]:
        try:
            source = open_regular(file.path)
        except OSError:
            continue
        try:
            sample = _sample(source, file.size)
        finally:
            os.close(source)
        if sample:
            ratio = codec.ratio(sample)
            before += file.size
            after += file.size * (ratio if ratio < WORTH_IT else 1.0)
    return after / before if before else 1.0
