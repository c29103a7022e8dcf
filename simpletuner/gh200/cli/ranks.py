"""The processes of a training: started, signalled, and none of them left behind."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import IO, Any, Self

_PR_SET_CHILD_SUBREAPER = 36
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_KILL_AFTER = 10.0


class Ranks:
    """Accelerate and the ranks it starts, in a session of their own: a Ctrl-C reaches them through this process alone."""

    def __init__(self, command: list[str], environment: Mapping[str, str], log: IO[Any], saves: bool) -> None:
        self.received: list[int] = []
        self._saves = saves
        self._handlers: dict[int, Any] = {}
        # Ranks whose launcher was killed become children of this process, not of init.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip

    def __enter__(self) -> Self:
        # Under nohup SIGHUP stays ignored.
        listened = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self._handlers = {number: signal.signal(number, self._forward) for number in listened}
        return self

    def __exit__(self, *_: object) -> None:
        deadline = time.monotonic() + _KILL_AFTER
        if self.running():
            self._send(signal.SIGTERM)
        while self.running():
            if time.monotonic() > deadline:
                self._send(signal.SIGKILL, everyone=True)
            time.sleep(0.05)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    @property
    def code(self) -> int:
        """The launcher's exit code, as a shell has it."""
        code = self._process.returncode or 0
        return code if code >= 0 else 128 - code

    def running(self) -> bool:
        """Whether any process of the training is left."""
        if self._process.poll() is None:
            return True
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        return any(True for _ in self._members())

    def _forward(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)
        # A Ctrl-C means the same as SIGTERM where that saves; after the second the ranks end at once.
        sent = signal.SIGTERM if self._saves or number == signal.SIGHUP else signal.Signals(number)
        self._send(signal.SIGKILL if len(self.received) > 2 else sent, everyone=len(self.received) > 2)

    def _send(self, number: int, everyone: bool = False) -> None:
        launcher, members = self._process.pid, list(self._members())
        ranks = [pid for pid, parent in members if pid != launcher and parent in (launcher, os.getpid())]
        for pid in [pid for pid, _ in members] if everyone else ranks or [pid for pid, _ in members]:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def _members(self) -> Iterator[tuple[int, int]]:
        """Process and parent of everything in the session."""
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                state, parent, _, session = path.read_text().rpartition(")")[2].split()[:4]
            except (OSError, ValueError):
                continue
            if int(session) == self._process.pid and state != "Z":
                yield int(path.parent.name), int(parent)
