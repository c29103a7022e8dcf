"""Which files are not read from RAM, named in the log once, and never more of them than somebody would read."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ...errors import printable
from .directory import StagedDirectory

logger = logging.getLogger("gh200.in_memory")

_MOST = 20


def report_files(dataset: str, what: str, problems: Sequence[str]) -> None:
    """Warns of files and names the first of them."""
    if problems:
        shown = "\n  ".join(map(printable, problems[:_MOST]))
        more = f"\n  ... and {len(problems) - _MOST} more" if len(problems) > _MOST else ""
        logger.warning("(id=%s) %d files %s:\n  %s%s", dataset, len(problems), what, shown, more)


class NewFiles:
    """Files that were added after staging, reported when they are first read."""

    def __init__(self) -> None:
        self._named: set[str] = set()

    def report(self, dataset: str, directory: StagedDirectory | None, path: str) -> None:
        """Warns once of a file that was added after staging."""
        named = self._named
        if directory is None or len(named) > _MOST or path in named or not directory.is_new(path):
            return
        named.add(path)
        text = printable(path) if len(named) <= _MOST else "further files, which are not named"
        logger.warning("(id=%s) Added after staging and read from disk: %s", dataset, text)
