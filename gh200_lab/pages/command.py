"""The command line of modules that write documents from tables: write them, or say which are not current."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def main(about: str | None, documents: Mapping[str, str], command: str, arguments: list[str] | None) -> int:
    """`documents` are contents by file name; `command` is the command shown to the operator."""
    parser = argparse.ArgumentParser(description=about)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true", help="write the files")
    action.add_argument("--check", action="store_true", help="exit 1 when a file is not what the source says")
    parser.add_argument("--into", type=Path, default=DOCS, help="directory of the files")
    options = parser.parse_args(arguments)
    stale = []
    for name, text in documents.items():
        target: Path = options.into / name
        if options.write:
            target.write_text(text, encoding="utf-8")
        elif not target.is_file() or target.read_text(encoding="utf-8") != text:
            stale.append(str(target))
    if stale:
        print(f"not what the source says: {', '.join(stale)}\n  fix: {command}", file=sys.stderr)
    return 1 if stale else 0
