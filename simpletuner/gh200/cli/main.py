"""`simpletuner gh200 COMMAND`: one command line for everything an operator starts."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from ..config.train_arguments import command_arguments
from ..errors import GH200Error

PROG = "simpletuner gh200"
# command -> module with `main(arguments)` and `parser()`, what it does. Each is imported only when it is named.
COMMANDS = {
    "doctor": (".doctor", "check this machine: one page, and a JSON report"),
    "new-job": (".new_job", "from a directory of images to jobs/NAME/config.json"),
    "check": (".check", "check a training config in seconds, without torch"),
    "train": (".train", "check a job, then train it"),
    "ramp": (".ramp", "the accumulation schedule of a config"),
    "watch": (".watch", "memory, caches and time of a run"),
    "bench": ("gh200_lab.bench.command", "measure the fork beside what it replaces"),
    "accept": (".doctor", "try every claim of the fork on this machine"),
    "completion": (".completion", "print a completion script for bash, zsh or tcsh"),
}


def command_line() -> None:
    """Before SimpleTuner's own imports: answer `gh200`, complete the arguments of its commands."""
    if sys.argv[1:2] == ["gh200"]:
        sys.exit(main(sys.argv[2:]))
    command_arguments()


def load(name: str) -> Any:
    """The module of a command."""
    module = COMMANDS[name][0]
    try:
        return import_module(module, __package__)
    except ModuleNotFoundError as error:
        raise GH200Error(
            f"{PROG} {name} is not available here.",
            why=f"there is no {error.name} in this Python",
            fix="run it in the repository, with .venv/bin/simpletuner",
        ) from error


def parser() -> argparse.ArgumentParser:
    """Names and help of the commands; each parses its own arguments."""
    rows = "\n".join(f"  {name:<12}{text}" for name, (_, text) in COMMANDS.items())
    made = argparse.ArgumentParser(
        prog=PROG, description=__doc__, epilog=f"commands:\n{rows}\n\n{PROG} COMMAND --help explains one of them",
        allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    made.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of those below")
    return made


def _lab_trainings() -> Any:
    """What trains in an acceptance run; the package itself has nothing that could."""
    return import_module("gh200_lab.validation.acceptance").Trainings()


def main(arguments: Sequence[str]) -> int:
    """Run one command; returns its exit code."""
    if not arguments or arguments[0] not in COMMANDS:
        words = ["--help"] if not arguments else arguments[:1]
        parser().parse_args(words)
    # SIGTERM ends a command like Ctrl-C does, with its own cleaning up; a closed pipe (head) ends the output.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    name, words = arguments[0], list(arguments[1:])
    try:
        if name == "accept":
            return int(load(name).main(["--acceptance", *words], trainer=_lab_trainings))
        return int(load(name).main(words))
    except GH200Error as error:
        print(error.render(), file=sys.stderr)
        return 2
