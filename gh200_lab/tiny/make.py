"""Makes the tiny models, each in a process of its own: what that imports is slow, and talks."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from .. import process
from ..place import environment
from ..scenario import Failed

HERE = Path(__file__).parent
FAMILIES = {"sd3": "gh200_lab.tiny.transformer"}
LIMIT = 600.0


def make_model(directory: Path, width: int = 8) -> None:
    """The random SDXL pipeline; a finished one is left as it is. A width of 128 makes a UNet of some 60 MB."""
    if not (directory / "model_index.json").is_file():
        _make("model.py", directory, os.environ, str(width))


def make_audio_model(directory: Path, fork: Path) -> None:
    """The random ACE-Step; its classes are the fork's."""
    _make("audio.py", directory, environment(fork))


def make_family(family: str, directory: Path) -> None:
    """The random model of another family, in a process that sees the lab."""
    if not (directory / "model_index.json").is_file():
        directory.mkdir(parents=True, exist_ok=True)
        variables = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
        _ran(["-m", FAMILIES[family], str(directory)], directory, variables)


@functools.cache
def shared_model() -> Path:
    """One for all runs of this process; it goes with it."""
    directory = Path(tempfile.mkdtemp(prefix="gh200-model-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    make_model(directory / "model")
    return directory / "model"


def _make(script: str, directory: Path, variables: Mapping[str, str], *more: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    _ran(["-P", str(HERE / script), str(directory), *more], directory, variables)


def _ran(words: list[str], directory: Path, variables: Mapping[str, str]) -> None:
    log = directory.with_suffix(".log")
    command = [sys.executable, *words]
    done = process.run(command, cwd=directory, environment=variables, log=log, limit=LIMIT)
    if done.code:
        raise Failed(f"the tiny model could not be made: {done.complaint()}")
    log.unlink()
