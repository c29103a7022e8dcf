"""Hands over to simpletuner/train.py beside it, so that `accelerate launch train.py` works from a fork's root."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
TRAINER = HERE / "simpletuner" / "train.py"

if not TRAINER.is_file():
    sys.exit(
        f"error: {TRAINER} does not exist\n"
        "  why: this folder holds the fork's difference, not a built fork\n"
        "  fix: build it with ./execute_gh200_rebase.sh, then run this file in build/fork"
    )
sys.path.insert(0, str(HERE))
runpy.run_path(str(TRAINER), run_name="__main__")
