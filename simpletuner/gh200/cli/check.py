"""Will this training config work? Every key, the model, the datasets, the ramp, memory and disk, in seconds."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ..config.blocks import loaded_config
from ..errors import GH200Error
from ..preflight.check import preflight

_EXAMPLES = """\
examples:
  simpletuner gh200 check jobs/first/config.json
  simpletuner gh200 check config/my.toml --processes 4     as four ranks would run it
  simpletuner gh200 check config/my.json --json | jq .problems

exit code: 0 it can be started, 2 it cannot work (all problems are named at once) or the file cannot be read
Paths in a config start at the directory the training is started in; run this from there too. Nothing is loaded or written.
"""


def above_zero(text: str) -> int:
    """An integer argument above 0."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: a whole number above 0 is wanted")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """The command line of `check`."""
    made = argparse.ArgumentParser(
        prog="simpletuner gh200 check", description=__doc__, epilog=_EXAMPLES, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    made.add_argument("config", type=Path, metavar="CONFIG", help="training config, .json or .toml")
    made.add_argument("--processes", type=above_zero, default=1, metavar="N", help="ranks the run will have (1)")
    made.add_argument(
        "--json", action="store_true", help="the findings as JSON on standard output, and nothing else there"
    )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a config; returns the exit code."""
    options = parser().parse_args(arguments)
    path = options.config.expanduser()
    try:
        config = loaded_config(path)
        report = preflight(options.config, config, options.processes, say=lambda text: print(text, file=sys.stderr))
    except GH200Error as error:
        print(error.render(), file=sys.stderr)
        return 2
    text = json.dumps(report.as_json(), indent=1, ensure_ascii=False) if options.json else "\n".join(report.lines())
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    print(text, flush=True)
    return 2 if report.problems else 0
