"""Where a report goes: tried before any work, written in one step, shown to a reader who may leave early."""

from __future__ import annotations

import argparse
import json
import os
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import GH200Error
from ..files import write_whole
from .facts import Facts
from .page import Page

SCHEMA_VERSION = 1
UNUSABLE = 2
# More than any report has, so that a full disk is noticed before the work and not after it.
TRIED_BYTES = 1 << 20


def check_output(target: Path) -> None:
    """Leaves nothing behind."""
    directory = target.resolve().parent
    try:
        if target.is_dir():
            raise IsADirectoryError(21, "is a directory")
        if _is_plain(target):
            with tempfile.TemporaryFile(dir=directory) as tried:
                tried.write(bytes(TRIED_BYTES))
                tried.flush()
    except OSError as error:
        raise GH200Error(
            "The report cannot be written.",
            where=str(target),
            why=error.strerror or str(error),
            fix="name a file in a directory that exists and can be written with --output FILE",
        ) from error


def _is_plain(target: Path) -> bool:
    """False for a device or a pipe, which must be written to and never replaced."""
    try:
        return stat.S_ISREG(target.stat().st_mode)
    except FileNotFoundError:
        return True


def report_head(facts: Facts, words: Sequence[str]) -> dict[str, Any]:
    """What the reports of a diagnosis and of an acceptance run begin with."""
    return {
        "schema_version": SCHEMA_VERSION,
        "created": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
        "arguments": list(words),
        "facts": asdict(facts) | {"memory_mode": facts.memory_mode, "room_bytes": facts.host.room_bytes},
    }


def deliver(report: dict[str, Any], options: argparse.Namespace, show: Callable[[Page], None], summary: str) -> int:
    """Writes and prints a report; the exit code is the one it names, unless it could not be written."""
    text = json.dumps(report, indent=1) + "\n"
    try:
        if _is_plain(options.output):
            write_whole(options.output.resolve(), text)
        else:
            options.output.write_text(text, encoding="utf-8")
    except OSError as error:
        # Minutes of work are not lost because a disk filled up meanwhile.
        print(f"The report could not be written to {options.output}: {error}. This is it:\n{text}", file=sys.stderr)
        return UNUSABLE
    with _standard_output():
        if options.json:
            sys.stdout.write(text)
        else:
            if not options.quiet:
                show(Page(sys.stdout))
            print(f"{summary}. Report: {options.output}")
    return int(report["summary"]["exit_code"])


@contextmanager
def _standard_output() -> Iterator[None]:
    """For everything that is printed: letters it cannot show and a reader who has gone are no errors."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # `| head` has seen enough; the report is written, and the exit code still counts.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
