"""The ramp: what its hook costs where no ramp is set, and what measuring the gradient noise scale adds to a step."""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from simpletuner.gh200.trainer import TrainerHooks

from .. import process
from ..place import find_place
from ..tiny.config import write_config
from ..tiny.lab import Lab
from ..tiny.launch import Launcher
from . import ramp_drive
from .result import BenchSettings, Ratio, Result, in_turn, over

CALLS = 20_000
WINDOW = 4
WARM_UP = 4  # pairs: the first ones fill caches


class _Empty:
    def _gh200_begin_micro_batch(self, batch: Any) -> None:
        return None


def measure(settings: BenchSettings) -> Iterator[Result]:
    """All results of this benchmark."""
    peers = {"an empty method": _Empty(), "the hook with no ramp": TrainerHooks()}
    taken = in_turn({name: partial(_call, trainer) for name, trainer in peers.items()}, settings.rounds * 2)
    costs = {name: tuple(one / CALLS * 1e6 for one in values) for name, values in taken.items()}
    yield Ratio("an empty method call, microseconds", costs["an empty method"])
    yield Ratio(
        "the hook with no ramp, microseconds per micro-batch", costs["the hook with no ramp"], 5, at_least=False
    )
    yield from _noise_scale(settings)


def _call(trainer: Any) -> None:
    for _ in range(CALLS):
        trainer._gh200_begin_micro_batch(None)


def _noise_scale(settings: BenchSettings) -> Iterator[Result]:
    try:
        place = find_place()
    except FileNotFoundError as missing:
        print("skipped: " + "; ".join(map(str, missing.args)))
        return
    pairs = WARM_UP + (4 if settings.quick else 12 * settings.rounds)
    print(f"  one trainer, {2 * pairs} steps of {WINDOW} micro-batches, measuring in every second one", flush=True)
    with tempfile.TemporaryDirectory(dir=settings.directory) as name:
        on, off = _trained(place.fork, Path(name), pairs)
    print(f"  median CPU time of a step without measuring: {statistics.median(off) * 1e3:.1f} ms")
    yield Ratio(
        "CPU time of a step with the noise scale measured, times one without", over(on, off), 1.03, at_least=False
    )


def _trained(tree: Path, directory: Path, pairs: int) -> tuple[list[float], list[float]]:
    """CPU seconds of steps with and without the meter, side by side in one process."""
    lab = Lab(directory, tree)
    lab.make(per_aspect=6)
    config = lab.config(
        "off",
        max_train_steps=2 * pairs + 1,
        gradient_accumulation_steps=WINDOW,
        checkpoint_step_interval=10 * pairs,
        gh200_optimizations={"measure_gradient_noise_scale": True},
    )
    written, launcher, output = write_config(config, directory / "config.json"), Launcher(), directory / "windows"
    done = process.run(
        [sys.executable, str(ramp_drive.__file__), str(tree / "simpletuner" / "train.py")],
        cwd=directory,
        environment=launcher.environment(tree, written, **{ramp_drive.VARIABLE: str(output)}),
        log=directory / "printed.log",
        limit=3600,
    )
    if done.code:
        raise RuntimeError(f"training ended with exit code {done.code}: {process.complaint(done.text)}")
    lines = [line.split() for line in output.read_text(encoding="utf-8").splitlines()]
    times = {word: [float(taken) for said, taken in lines if said == word] for word in ("on", "off")}
    # The first one has the start in it, and its partner is the second "off".
    return times["on"][1 + WARM_UP :], times["off"][WARM_UP : WARM_UP + len(times["on"]) - 1 - WARM_UP]
