"""Files that a scan put into no bucket: by reason and with names, in the log, and all of them in a file."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from ...errors import printable
from ...files import write_whole

logger = logging.getLogger("gh200.start")

NAMED = 10


class SkippedFiles:
    """Files that a scan put in no bucket, by reason."""

    def __init__(self, backend: Any) -> None:
        self._id = backend.id
        cache = Path(backend.cache_file)
        self._file = cache.with_name(f"{cache.stem}.left_out.tsv")
        self._by_reason: dict[str, list[str]] = {}

    def add(self, path: str, reason: str) -> None:
        """One more."""
        self._by_reason.setdefault(reason, []).append(path)

    def report(self, scanned: int) -> None:
        """Nothing to say where every file has its bucket."""
        if not self._by_reason:
            self._file.unlink(missing_ok=True)
            return
        count = sum(len(paths) for paths in self._by_reason.values())
        lines = [f"(id={self._id}) {count} of {scanned} files scanned are in no bucket:"]
        for reason, paths in sorted(self._by_reason.items(), key=lambda item: -len(item[1])):
            more = f" and {len(paths) - NAMED} more" if len(paths) > NAMED else ""
            named = ", ".join(map(printable, paths[:NAMED]))
            lines.append(f"  {len(paths)} {printable(reason.replace('_', ' '))}: {named}{more}")
        lines.append(f"  all of them: {self._written()}")
        logger.warning("\n".join(lines))

    def _written(self) -> str:
        rows = [
            f"{printable(reason)}\t{_in_one_line(path)}\n"
            for reason, paths in self._by_reason.items()
            for path in paths
        ]
        try:
            write_whole(self._file, "".join(rows).encode())
        except OSError as error:
            return f"{self._file} could not be written ({error.strerror})"
        return str(self._file)


def _in_one_line(path: str) -> str:
    """The name as it is on disk; as a JSON string where it is not one line of text, or looks like a JSON string."""
    return path if path.isprintable() and not path.startswith('"') else json.dumps(path)
