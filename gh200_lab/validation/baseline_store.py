"""Where the files of a timed run go, so that no earlier one is ever lost."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

FILES = ("baseline.json", "baseline_report.txt", "nvidia_smi.log", "trace")


def check_writable(output: Path) -> None:
    """Before any training: OSError if the results could not be kept there."""
    output.mkdir(parents=True, exist_ok=True)
    probe = output / ".write"
    probe.write_bytes(b"")
    probe.unlink()


def store(made: Path, output: Path, *, compared: bool) -> Path:
    """Puts the files in place: a compared run beside the baseline; a new baseline moves the old one aside."""
    if compared:
        target = _fresh(output / "compared")
    else:
        target = output
        _move_aside(output)
    target.mkdir(parents=True, exist_ok=True)
    # Last, because it is what makes the directory a baseline.
    for name in reversed(FILES):
        if (made / name).exists():
            shutil.move(made / name, target / name)
    return target


def _move_aside(output: Path) -> None:
    there = [name for name in FILES if (output / name).exists()]
    if there:
        earlier = _fresh(output / "earlier")
        earlier.mkdir(parents=True)
        for name in there:
            (output / name).rename(earlier / name)


def _fresh(directory: Path) -> Path:
    """A directory named after this moment that nobody has used yet."""
    stamp, number = time.strftime("%Y%m%d-%H%M%S"), 1
    while (directory / (name := stamp if number == 1 else f"{stamp}-{number}")).exists():
        number += 1
    return directory / name
