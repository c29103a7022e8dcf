"""Runs a command in a pseudo terminal of a given width, and returns what the screen showed."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Seen:
    code: int
    columns: int
    raw: str

    @property
    def frames(self) -> list[list[str]]:
        """For each line what stood on it, one after another: a bar draws itself over."""
        lines = ESCAPE.sub("", self.raw).replace("\r\n", "\n").split("\n")
        return [line.split("\r") for line in (lines if lines[-1] else lines[:-1])]

    @property
    def lines(self) -> list[str]:
        """The last frame of each line."""
        return [frames[-1] for frames in self.frames]

    @property
    def rows(self) -> int:
        """What it took of the screen; a frame that is too wide leaves its first part behind."""
        return sum(max(1, *(-(-len(frame) // self.columns) for frame in frames)) for frames in self.frames)


def in_terminal(command: list[str], columns: int, cwd: Path, environment: Mapping[str, str] | None = None) -> Seen:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    variables = {**(os.environ if environment is None else environment), "TERM": "xterm"}
    process = subprocess.Popen(
        command, cwd=cwd, env=variables, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    data = b""
    try:
        while block := _read(ours):
            data += block
    finally:
        os.close(ours)
        code = process.wait()
    return Seen(code, columns, data.decode("utf-8", "replace"))


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:
        # Linux raises this once the other end is closed.
        return b""
