"""SIGTERM and SIGUSR1 of this process, for as long as the run lasts: the first one asks, a second one ends at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType
from typing import Any

from ..errors import GH200Error

# Free among the codes of shells, of sysexits and of the launchers; they turn it into 1, therefore the marker too.
EXIT_CODE = 85
ASKING = (signal.SIGTERM, signal.SIGUSR1)
# A scheduler and a launcher may both pass on one and the same warning.
SAME_WARNING_SECONDS = 1.0
_UPSTREAMS_DUMP = "SIMPLETUNER_FAULTHANDLER_DIR"


class PreemptionError(GH200Error):
    """The run cannot leave on a signal the way it was asked to."""


class Signals:
    """What this process was told. Before training begins there is nothing to save, and the first signal ends it."""

    def __init__(self) -> None:
        self.asked_with = 0
        self.training = self.leaving = False
        self._asked_at = 0.0
        self._process = os.getpid()
        self._before: dict[signal.Signals, Any] = {}

    def listen(self) -> None:
        _reject_where_unheard()
        for number in ASKING:
            # None is a handler that was not set from Python and cannot be put back by it.
            self._before[number] = signal.signal(number, self._hear) or signal.SIG_DFL

    def stop_listening(self) -> None:
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._hear:
                signal.signal(number, handler)
        self._before.clear()

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            _for_a_child(number)
        elif not self.asked_with:
            self.asked_with, self._asked_at = number, time.monotonic()
            self._answer()
        elif time.monotonic() - self._asked_at >= SAME_WARNING_SECONDS:
            if self.leaving:
                # All is written: what still runs is the end of the interpreter.
                os._exit(EXIT_CODE)
            _by_default(number)

    def _answer(self) -> None:
        name = signal.Signals(self.asked_with).name
        if self.training:
            _say(f"GH200: {name}: this window is finished, then a checkpoint is written and all ranks leave.")
        elif not self.leaving:
            _say(f"GH200: {name} before training has begun: there is nothing to save, the run ends here.")
            raise SystemExit(EXIT_CODE)


def _reject_where_unheard() -> None:
    if threading.current_thread() is not threading.main_thread():
        raise PreemptionError(
            "gh200_optimizations.checkpoint_on_signal is rejected in this run.",
            why="the Trainer was not made in the main thread, and Python tells no other thread of a signal",
            fix="start the run with train.py or simpletuner train, or turn the key off",
        )
    if os.environ.get(_UPSTREAMS_DUMP):
        raise PreemptionError(
            f"gh200_optimizations.checkpoint_on_signal is rejected while {_UPSTREAMS_DUMP} is set.",
            why="upstream then writes where every thread is whenever SIGUSR1 comes; both cannot have that signal",
            fix=f"unset {_UPSTREAMS_DUMP}, or turn the key off",
        )
    taken = [number.name for number in ASKING if callable(signal.getsignal(number))]
    if taken:
        raise PreemptionError(
            "gh200_optimizations.checkpoint_on_signal is rejected in this run.",
            why=f"the program around it listens for {' and '.join(taken)} itself",
            fix="start the run with train.py or simpletuner train, or turn the key off",
        )


def _for_a_child(number: int) -> None:
    """A forked worker has inherited the handler: its parent ends it with SIGTERM, a warning to all is not for it."""
    if number == signal.SIGTERM:
        _by_default(number)


def _by_default(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _say(text: str) -> None:
    # Neither print nor logging: the signal may have come in the middle of one of theirs.
    os.write(2, f"\n{text}\n".encode())
