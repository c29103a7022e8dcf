"""Runs a command of a scenario within a time limit, and leaves nothing of it behind, however the scenario ends."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .scenario import Failed

PAUSE = 0.05
SHOWN = 40
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
ERROR = re.compile(r"[\w.]*(Error|Exception|Interrupt|Exit)\b")
LAUNCHER = "CalledProcessError"
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Finished:
    """A command that has ended."""

    code: int
    text: str
    seconds: float

    def complaint(self) -> str:
        """Its most telling line."""
        return complaint(self.text)


def run(
    command: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    log: Path,
    limit: float,
    watch: Callable[[int], None] = lambda group: None,
    pause: float = PAUSE,
    append: bool = False,
) -> Finished:
    """What it printed is kept in `log`; `watch` is called again and again while it runs, with its process group."""
    started = time.monotonic()
    with log.open("ab" if append else "wb") as written, _signals_wait() as let_through:
        begun = written.tell()
        # A session of its own: launchers start children, and all of them must end with the scenario.
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=dict(environment),
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=functools.partial(_in_child, let_through),
        )
        try:
            let_through()
            while process.poll() is None:
                if time.monotonic() - started > limit:
                    last = complaint(_printed(log, begun))
                    raise Failed(f"{Path(command[0]).name} did not end within {limit:.0f} s; last: {last}")
                watch(process.pid)
                time.sleep(pause)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return Finished(process.returncode, _printed(log, begun), time.monotonic() - started)


def _in_child(let_through: Callable[[], object]) -> None:
    """A parent that is killed outright ends nobody: then the kernel does."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    let_through()


@contextlib.contextmanager
def _signals_wait() -> Iterator[Callable[[], object]]:
    """A signal that came after the child's start and before the lines that end it would leave the child behind."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    let_through = functools.partial(signal.pthread_sigmask, signal.SIG_SETMASK, before)
    try:
        yield let_through
    finally:
        let_through()


def _printed(log: Path, begun: int) -> str:
    return log.read_bytes()[begun:].decode("utf-8", "replace")


def end_well_when_asked_to() -> None:
    """A terminated script still ends its children and removes its files: as with Ctrl-C, `finally` blocks run."""
    for asked in (signal.SIGTERM, signal.SIGHUP):
        # nohup means that a lost terminal shall not end it.
        if signal.getsignal(asked) is not signal.SIG_IGN:
            signal.signal(asked, lambda number, _: sys.exit(128 + number))


def complaint(text: str) -> str:
    """One line for the outcome: the last error that is not the launcher's own. The lines around it go to stderr."""
    lines = [line for line in COLOUR.sub("", text).splitlines() if line.strip()]
    print("\n".join(lines[-SHOWN:]), file=sys.stderr, flush=True)
    errors = [line for line in lines if ERROR.match(line) and LAUNCHER not in line]
    return (errors or lines or ["it printed nothing"])[-1].strip()[:300]
