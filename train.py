"""Hands over to simpletuner/train.py beside it, or to that of the fork built here: `accelerate launch train.py`."""

from __future__ import annotations

import os
import runpy
import sys
from contextlib import suppress
from pathlib import Path

HERE = Path(__file__).resolve().parent


def current_build() -> Path:
    """build/fork, resolved: a rebase changes no process that runs. A requeued Slurm job gets the build it started on."""
    build, job = HERE / "build" / "fork", os.environ.get("SLURM_JOB_ID", "")
    if not job.isdigit() or not build.is_symlink():
        return build.resolve()
    link = HERE / "build" / "forks" / ".jobs" / job
    link.parent.mkdir(exist_ok=True)
    with suppress(FileExistsError):
        link.symlink_to(build.resolve())
    return link.resolve()


TREE = next((tree for tree in (HERE, current_build()) if (tree / "simpletuner" / "__init__.py").is_file()), None)

if TREE is None:
    sys.exit(
        f"error: there is no SimpleTuner in {HERE}\n"
        "  why: this directory holds the fork's difference, and no fork was built from it yet\n"
        "  fix: build it with ./execute_gh200_rebase.sh"
    )
sys.path.insert(0, str(TREE))
runpy.run_path(str(TREE / "simpletuner" / "train.py"), run_name="__main__")
