"""What a run is doing with memory and time: a page that refreshes, or one answer for a script."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ..errors import GH200Error
from ..telemetry.page import page
from ..telemetry.reader import read_directory

_EXAMPLES = """\
examples:
  simpletuner gh200 watch jobs/first/output
  simpletuner gh200 watch --once --json jobs/first/output | jq .ranks

exit code: 0 shown, 2 there is nothing to show (the fix is named)
Ctrl-C ends it; the run is never touched. What each value means: docs/TELEMETRY.md
"""
_SECONDS = 2.0
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


def parser() -> argparse.ArgumentParser:
    """The command line of `watch`."""
    made = argparse.ArgumentParser(
        prog="simpletuner gh200 watch", description=__doc__, epilog=_EXAMPLES, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    made.add_argument("directory", type=Path, metavar="OUTPUT_DIR", help="output_dir of a training config")
    made.add_argument("--once", action="store_true", help="show it once; also where the output is no terminal")
    made.add_argument("--json", action="store_true", help="the newest record of every rank as JSON; with --once")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Show telemetry; returns the exit code."""
    made = parser()
    options = made.parse_args(arguments)
    if options.json and not options.once:
        made.error("--json needs --once")
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        directory = options.directory.expanduser()
        if options.once or not sys.stdout.isatty():
            print(_once(directory, options.json), flush=True)
        else:
            _refreshing(directory)
    except GH200Error as error:
        print(error.render(), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print()
    except BrokenPipeError:
        sys.stderr.close()
    return 0


def _once(directory: Path, as_json: bool) -> str:
    seen = read_directory(directory)
    if as_json:
        return json.dumps(seen.as_json(), indent=1, ensure_ascii=True)
    return "\n".join(page(seen, shutil.get_terminal_size((100, 0)).columns))


def _refreshing(directory: Path) -> None:
    print("\x1b[2J", end="")
    while True:
        columns, rows = shutil.get_terminal_size()
        lines = page(read_directory(directory), columns)[: max(1, rows - 1)]
        print(_HOME + "".join(f"{line}{_CLEAR_LINE}\n" for line in lines) + _CLEAR_BELOW, end="", flush=True)
        time.sleep(_SECONDS)
