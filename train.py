"""Hands over to simpletuner/train.py beside it, or to that of the fork built here: `accelerate launch train.py`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
TREES = (HERE, HERE / "build" / "fork")
TREE = next((tree for tree in TREES if (tree / "simpletuner" / "train.py").is_file()), None)

if TREE is None:
    sys.exit(
        f"error: {HERE / 'simpletuner' / 'train.py'} does not exist\n"
        "  why: this directory holds the fork's difference, and no fork was built from it yet\n"
        "  fix: build it with ./execute_gh200_rebase.sh"
    )
sys.path.insert(0, str(TREE))
runpy.run_path(str(TREE / "simpletuner" / "train.py"), run_name="__main__")
