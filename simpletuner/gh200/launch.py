"""Start-up: the `simpletuner` that was imported is the one that runs, and loads no more than is installed."""

from __future__ import annotations

import fcntl
import os
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path


def check_beside(script: str) -> None:
    """Stop when `script` (a file inside the package) belongs to another tree than the imported package."""
    import simpletuner

    wanted = Path(script).resolve().parent
    imported = Path(simpletuner.__file__ or "").resolve().parent
    if imported == wanted:
        _lock_build(wanted.parent)
        return
    print(
        f"error: {Path(script).name} runs from one simpletuner and has imported another\n"
        f"  where: script in {wanted}, package in {imported}\n"
        "  why: the first simpletuner on Python's path wins, without a word\n"
        f"  fix: uninstall the other one (pip uninstall simpletuner), or set PYTHONPATH={wanted.parent}",
        file=sys.stderr,
    )
    raise SystemExit(2)


def _lock_build(tree: Path) -> None:
    """A shared lock that lasts as long as the process: the rebase tool deletes no build that is in use."""
    with suppress(OSError):  # a wheel, or a checkout that is no build
        fcntl.flock(os.open(tree / ".git/gh200/in_use", os.O_RDONLY), fcntl.LOCK_SH | fcntl.LOCK_NB)


def without_torch(switch: str) -> str:
    """Upstream's switch for light imports; set where the heavy ones could only fail, and for the fork's own commands."""
    return switch or ("1" if _is_command_of_ours(sys.orig_argv) or not find_spec("torch") else "")


def _is_command_of_ours(line: list[str]) -> bool:
    """`python -m simpletuner.gh200.NAME`: they answer in a second, and load what they need themselves."""
    modules = [line[place + 1] for place, word in enumerate(line[:-1]) if word == "-m"][:1]
    return any(name.startswith("simpletuner.gh200.") for name in modules)
