"""docs/MODULE_PATHS.md from docs/module_paths.json: where the modules of v1 are now. Kept for one release."""

from __future__ import annotations

import json
import sys

from . import command as generated_docs

PAGE_FILE = "MODULE_PATHS.md"
SOURCE = generated_docs.DOCS / "module_paths.json"
COMMAND = "python -m gh200_lab.pages.module_paths --write"
_HEAD = """# Module paths since v1

Generated from `docs/module_paths.json`; do not edit. Names of the [contract](GH200_GUIDE.md), module entry points, config keys and
files on disk have not moved. `-` means that the module went with its feature; see CHANGELOG.md.

| v1 | now |
| --- | --- |
"""


def moved() -> dict[str, str | None]:
    """The present path by the one of v1; None where there is none."""
    found: dict[str, str | None] = json.loads(SOURCE.read_text(encoding="utf-8"))
    return found


def page() -> str:
    """The table of all paths that have changed."""
    return _HEAD + "".join(f"| {old} | {f'`{new}`' if new else '-'} |\n" for old, new in moved().items())


def main(arguments: list[str] | None = None) -> int:
    """Writes or checks the page."""
    return generated_docs.main(__doc__, {PAGE_FILE: page()}, COMMAND, arguments)


if __name__ == "__main__":
    sys.exit(main())
