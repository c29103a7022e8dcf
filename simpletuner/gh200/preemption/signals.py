"""SIGTERM and SIGUSR1 of this process during the run: the first requests a checkpoint, the second ends the process."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType
from typing import Any

from ..errors import GH200Error

# Free among the codes of shells, of sysexits and of the launchers; those turn it into 1, hence the marker file.
EXIT_CODE = 85
ASKING = (signal.SIGTERM, signal.SIGUSR1)
# A scheduler and a launcher may both forward the same signal.
SAME_SIGNAL_SECONDS = 1.0
_UPSTREAMS_DUMP = "SIMPLETUNER_FAULTHANDLER_DIR"


class PreemptionError(GH200Error):
    """The run cannot save a checkpoint on a signal."""


class Signals:
    """Signals this process received. Before training begins there is nothing to save: the first signal ends it."""

    def __init__(self) -> None:
        self.asked_with = 0
        self.training = self.saved = False
        self._asked_at = 0.0
        self._process = os.getpid()
        self._before: dict[signal.Signals, Any] = {}

    def listen(self) -> None:
        """Install the handlers; rejected where they cannot work."""
        _reject_unsupported()
        for number in ASKING:
            # None: the handler was not set from Python, which cannot restore it.
            self._before[number] = signal.signal(number, self._receive) or signal.SIG_DFL

    def stop_listening(self) -> None:
        """Restore the handlers from before."""
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._receive:
                signal.signal(number, handler)
        self._before.clear()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            _in_child(number)
        elif not self.asked_with:
            self.asked_with, self._asked_at = number, time.monotonic()
            self._report()
        elif time.monotonic() - self._asked_at >= SAME_SIGNAL_SECONDS:
            if self.saved:
                # The checkpoint is complete: only the interpreter still has to exit.
                os._exit(EXIT_CODE)
            _default_action(number)

    def _report(self) -> None:
        name = signal.Signals(self.asked_with).name
        if self.training:
            _say(f"GH200: {name}: finishing this accumulation window, then all ranks save a checkpoint and exit.")
        elif not self.saved:
            _say(f"GH200: {name} before training began: nothing to save, the run ends here.")
            raise SystemExit(EXIT_CODE)


def _reject_unsupported() -> None:
    if threading.current_thread() is not threading.main_thread():
        raise PreemptionError(
            "gh200_optimizations.checkpoint_on_signal is rejected in this run.",
            why="the Trainer was not made in the main thread, and Python runs signal handlers only there",
            fix="start the run with train.py or simpletuner train, or turn the key off",
        )
    if os.environ.get(_UPSTREAMS_DUMP):
        raise PreemptionError(
            f"gh200_optimizations.checkpoint_on_signal is rejected while {_UPSTREAMS_DUMP} is set.",
            why="SimpleTuner then dumps all stacks on SIGUSR1; both cannot use that signal",
            fix=f"unset {_UPSTREAMS_DUMP}, or turn the key off",
        )
    taken = [number.name for number in ASKING if callable(signal.getsignal(number))]
    if taken:
        raise PreemptionError(
            "gh200_optimizations.checkpoint_on_signal is rejected in this run.",
            why=f"the calling program handles {' and '.join(taken)} itself",
            fix="start the run with train.py or simpletuner train, or turn the key off",
        )


def _in_child(number: int) -> None:
    """A forked worker inherits the handler: SIGTERM ends it, SIGUSR1 to the process group is not for it."""
    if number == signal.SIGTERM:
        _default_action(number)


def _default_action(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _say(text: str) -> None:
    # Neither print nor logging: the signal may have interrupted one of their calls.
    os.write(2, f"\n{text}\n".encode())
