#!/usr/bin/env python3
"""Will this machine do what a GH200 run asks of it? `python3 gh200_diagnostic.py --help` explains the options."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
PACKAGE = HERE / "simpletuner"


def main() -> int:
    """Start the diagnostic of the package beside this file."""
    if not (PACKAGE / "gh200" / "cli" / "doctor.py").is_file():
        print(
            f"error: there is no simpletuner/gh200 beside {Path(__file__).name}\n"
            f"  where: {HERE}\n"
            "  why: this file only starts the diagnostic, which lives in that package\n"
            "  fix: run it where it was, in the repository or the fork, or copy simpletuner/gh200 with it",
            file=sys.stderr,
        )
        return 2
    # An empty parent instead of upstream's own, whose start-up code wants torch and takes seconds.
    parent = ModuleType("simpletuner")
    parent.__path__ = [str(PACKAGE)]
    sys.modules["simpletuner"] = parent
    return int(import_module("simpletuner.gh200.cli.doctor").main(trainer=_trainer))


def _trainer() -> Any:
    """What runs the trainings of an acceptance run: the lab's, because the package itself must not know it."""
    return import_module("gh200_lab.validation.acceptance").Trainings()


if __name__ == "__main__":
    sys.exit(main())
