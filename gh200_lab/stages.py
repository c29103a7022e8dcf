"""Long work in one line per stage: a bar while it runs in a terminal, all output in a log, its relevant end on an error.

The standard library alone, and run by its path: set-up shows its stages before there is an environment.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

PAUSE = 0.2
TITLE = 16
BAR = 8
SHOWN = 30
TAIL = 1 << 16
COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# Where the reason of a failure begins: our own errors, Python's, and what pytest says after the last test.
TRACEBACK = "Traceback (most recent call last)"
LAUNCHER = "subprocess.CalledProcessError"
REASON = re.compile(
    r"^(error: |Error: |This training cannot work|GH200 settings: |Traceback \(most recent|E   |=+ (FAILURES|ERRORS|short test summary))"
)


class Log:
    """What one stage adds to a log file that others may have begun."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._start = self._seen = path.stat().st_size if path.is_file() else 0

    def text(self) -> str:
        """All lines since the start."""
        return self._read(self._start)

    def tail(self) -> str:
        """Its last lines: a log may grow large, and is looked at several times a second."""
        size = self.path.stat().st_size if self.path.is_file() else 0
        return self._read(max(self._start, size - TAIL))

    def new(self) -> str:
        """Since the last call."""
        text = self._read(self._seen)
        self._seen += len(text.encode("utf-8", "surrogateescape"))
        return text

    def _read(self, place: int) -> str:
        if not self.path.is_file():
            return ""
        with self.path.open("rb") as file:
            file.seek(place)
            return file.read().decode("utf-8", "surrogateescape")


Watch = Callable[[Log], tuple[float | None, str]]


class Stage:
    """One line: `show` how far it is, `done` with what it came to; an exception passes, and the line says so."""

    def __init__(self, title: str, log: Log, *, verbose: bool = False, stream: TextIO | None = None) -> None:
        self.title, self.log, self.verbose = title, log, verbose
        self._stream = stream or sys.stderr
        self._live = not verbose and self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._began = time.monotonic()
        self._said = ""

    def __enter__(self) -> Self:
        if self._live:
            self.show()
        else:
            self._write(f"{self.title}:\n" if self.verbose else f"{self.title:<{TITLE}} ")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._copy()
        text = self._said if kind is None else "interrupted" if kind is KeyboardInterrupt else "failed"
        seconds = time.monotonic() - self._began
        line = " ".join(part for part in (text, f"({duration(seconds)})" if seconds >= 1 else "") if part) or "done"
        if self._live or self.verbose:
            line = f"{self.title:<{TITLE}} {line}"
        self._write(("\r\x1b[K" if self._live else "") + line + "\n")

    def show(self, fraction: float | None = None, text: str = "") -> None:
        """How far it is; in a terminal only, and never wider than that."""
        self._copy()
        if not self._live:
            return
        seconds = time.monotonic() - self._began
        bar = "" if fraction is None else f"{drawn(fraction)} "
        line = f"{self.title:<{TITLE}} {bar}{text or 'at work'}"
        end, columns = f" {duration(seconds)}", self._columns()
        # A letter may be two columns wide, or none: what is not plain would break the line.
        fitting = line.encode("ascii", "replace").decode()[: max(0, columns - len(end) - 1)] + end
        self._write("\r\x1b[K" + fitting[: columns - 1])

    def done(self, text: str) -> None:
        """Set the text of the finished line."""
        self._said = text

    def _copy(self) -> None:
        if self.verbose:
            self._write(self.log.new())

    def _columns(self) -> int:
        with contextlib.suppress(OSError, ValueError):
            return os.get_terminal_size(self._stream.fileno()).columns or 80
        return 80

    def _write(self, text: str) -> None:
        self._stream.write(text.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
        self._stream.flush()


def drawn(fraction: float) -> str:
    """A bar."""
    full = round(max(0.0, min(1.0, fraction)) * BAR)
    return f"[{'#' * full}{'.' * (BAR - full)}] {fraction:4.0%}"


def duration(seconds: float) -> str:
    """Seconds as text."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def shown(path: Path) -> str:
    """As short as it can be typed from here."""
    return min(str(path), os.path.relpath(path), key=len)


def plain(text: str) -> list[str]:
    """Lines as a terminal would show them in the end: without colours, and of a bar its last state."""
    lines = (line.rstrip("\r").rpartition("\r")[2].rstrip() for line in COLOUR.sub("", text).split("\n"))
    return [line for line in lines if line]


def _without_launcher(lines: list[str]) -> list[str]:
    """Accelerate ends with a traceback of its own, which says only that the training before it has ended."""
    last = max((place for place, line in enumerate(lines) if line.startswith(TRACEBACK)), default=None)
    if last is None or not any(LAUNCHER in line for line in lines[last:]):
        return lines
    return lines[:last] or lines


def relevant_end(text: str, shown: int = SHOWN) -> list[str]:
    """From where the reason begins, or the last lines."""
    lines = _without_launcher(plain(text))
    begins = [place for place, line in enumerate(lines) if REASON.match(line)]
    if not begins:
        return lines[-shown:]
    # Tracebacks and tests fail one after another: the first one of the last run of lines that fits.
    first = next((place for place in begins if len(lines) - place <= shown), begins[-1])
    return lines[first:][:shown]


def run(stage: Stage, command: list[str], watch: Watch, asked: list[int]) -> int:
    """In this process group: what the terminal or a harness sends to us reaches it too. `asked` are signals to end by.

    They are only noted where they arrive: an exception in the middle of a start would leave the command behind.
    """
    with stage.log.path.open("ab") as written:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=written, stderr=subprocess.STDOUT)
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(PAUSE)
            if asked:
                sys.exit(128 + asked[0])
            stage.show(*watch(stage.log))
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def watcher(percent: str, counted: list[str]) -> Watch:
    """How far a command is, from what it printed: its last percentage, or how many of its lines say so."""

    def watch(log: Log) -> tuple[float | None, str]:
        text = log.text() if counted else log.tail()
        lines = plain(text)
        last = lines[-1].strip() if lines else ""
        if percent and (found := re.findall(percent, text)):
            return float(found[-1]) / 100, ""
        if counted and (total := _lines_with(counted[1], text)):
            return _lines_with(counted[0], text) / total, last
        return None, last

    return watch


def _lines_with(pattern: str, text: str) -> int:
    return len(re.findall(pattern, text, re.MULTILINE))


def main() -> int:
    """Run a command as a stage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("title")
    parser.add_argument("--log", type=Path, required=True, help="the file the command's output is added to")
    parser.add_argument("--percent", default="", help="a pattern that finds a percentage in the output")
    parser.add_argument(
        "--counted", nargs=2, default=[], metavar=("DONE", "ALL"), help="patterns: so many lines of so many"
    )
    parser.add_argument("--done", default="", help="a pattern; the last one found is what the line says in the end")
    parser.add_argument("--shown", type=int, default=SHOWN, help="how many lines of the log an error may show")
    parser.add_argument("-v", "--verbose", action="store_true")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGHUP):
        # nohup means that a lost terminal shall not end it.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda received, _: asked.append(received))
    log = Log(options.log)
    try:
        with Stage(options.title, log, verbose=options.verbose) as stage:
            code = run(stage, options.command, watcher(options.percent, options.counted), asked)
            found = re.findall(options.done, log.text(), re.MULTILINE) if options.done else []
            stage.done(f"failed, exit code {code}" if code else plain(found[-1])[0] if found else "")
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    if code and not options.verbose:
        print("\n".join(f"  {line}" for line in relevant_end(log.text(), options.shown)), file=sys.stderr)
        print(f"  all of it: {shown(log.path)}", file=sys.stderr)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
