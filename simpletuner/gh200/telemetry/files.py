"""The files of a run: one per rank, lines appended whole; what a killed run left half written stays beside them."""

from __future__ import annotations

import os
import re
from pathlib import Path

_NAME = re.compile(r"gh200_telemetry\.rank(\d+)\.jsonl")
_LONGEST_LINE = 8192


def path_of(directory: Path, rank: int) -> Path:
    """A rank's telemetry file."""
    return directory / f"gh200_telemetry.rank{rank}.jsonl"


def files_in(directory: Path) -> dict[int, Path]:
    """By rank, lowest first."""
    found = ((_NAME.fullmatch(path.name), path) for path in directory.iterdir())
    return dict(sorted((int(match[1]), path) for match, path in found if match and path.is_file()))


def append(path: Path, line: bytes) -> None:
    """One write per line; opened anew each time, so that a directory that was moved away or came back is no trouble."""
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        # A line that was cut off, by a kill or by a full disk, must not swallow this one.
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) not in (b"\n", b""):
            line = b"\n" + line
        written = os.write(handle, line)
        if written < len(line):
            raise OSError(
                0, f"only {written} of {len(line)} bytes were written: the disk is full, or a quota is reached"
            )
    finally:
        os.close(handle)


def last_lines(path: Path, most: int) -> list[bytes]:
    """The last whole lines of a file, oldest first; one that is being written has no end yet and does not count."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - most * _LONGEST_LINE))
        cut = file.tell() > 0
        lines = file.read().split(b"\n")[int(cut) : -1]
    return [line for line in lines[-most:] if line]
