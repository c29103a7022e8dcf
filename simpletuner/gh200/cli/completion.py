"""Prints a completion script: `simpletuner gh200 completion bash >~/.local/share/bash-completion/completions/simpletuner`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import shtab

from .main import COMMANDS, load


def parser() -> argparse.ArgumentParser:
    """The command line of `completion`."""
    made = argparse.ArgumentParser(prog="simpletuner gh200 completion", description=__doc__)
    made.add_argument("shell", choices=shtab.SUPPORTED_SHELLS)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the script; returns the exit code."""
    shell = parser().parse_args(arguments).shell
    root = argparse.ArgumentParser(prog="simpletuner")
    ours = root.add_subparsers().add_parser("gh200", help="the GH200 fork").add_subparsers()
    for name, (_, text) in COMMANDS.items():
        own = load(name).parser()
        own.prog, own.add_help = name, False
        ours.add_parser(name, parents=[own], add_help=False, conflict_handler="resolve", help=text)
    print(shtab.complete(root, shell))
    return 0
