"""Where a report goes: tried before any work, written in one step, shown to a reader who may leave early."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import GH200Error

# More than any report has, so that a full disk is noticed before the work and not after it.
ROOM = 1 << 20


def check_output(target: Path) -> None:
    """Leaves nothing behind."""
    folder = target.resolve().parent
    try:
        if target.is_dir():
            raise IsADirectoryError(21, "is a folder")
        if _is_plain(target):
            with tempfile.TemporaryFile(dir=folder) as tried:
                tried.write(bytes(ROOM))
                tried.flush()
    except OSError as error:
        raise GH200Error(
            "The report cannot be written.",
            where=str(target),
            why=error.strerror or str(error),
            fix="name a file in a folder that exists and can be written with --output FILE",
        ) from error


def _is_plain(target: Path) -> bool:
    """False for a device or a pipe, which must be written to and never replaced."""
    try:
        return stat.S_ISREG(target.stat().st_mode)
    except FileNotFoundError:
        return True


def write_report(target: Path, text: str) -> None:
    """A reader sees the old report or the new one."""
    if not _is_plain(target):
        target.write_text(text, encoding="utf-8")
        return
    place = target.resolve()
    part = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(place)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def standard_output() -> Iterator[None]:
    """For everything that is printed: letters it cannot show and a reader who has gone are no errors."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # `| head` has seen enough; the report is written, and the exit code still counts.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
