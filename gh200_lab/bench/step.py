"""A whole training step of the real trainer on a tiny model: plain upstream, the fork with all off, the fork with caches."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ..place import find_place
from ..tiny.config import UNIFIED, write_config
from ..tiny.lab import Lab
from ..tiny.turns import Trainer
from .result import BenchSettings, Ratio, Result, over

WARM_UP = 0.25  # of the steps: the first ones fill caches


def measure(settings: BenchSettings) -> Iterator[Result]:
    """All results of this benchmark."""
    try:
        place = find_place()
    except FileNotFoundError as missing:
        print("skipped: " + "; ".join(map(str, missing.args)))
        return
    if place.pristine is None:
        print("skipped: there is no pristine tree; ./execute_gh200_rebase.sh --skip-tests keeps it beside the fork")
        return
    steps = 8 if settings.quick else 24 * settings.rounds
    with tempfile.TemporaryDirectory(dir=settings.directory) as name, ExitStack() as ending:
        directory = Path(name)
        print("  starting three trainers, one after the other; then they take their steps in turn", flush=True)
        trainers = [
            ending.enter_context(_trainer(place.pristine, directory / "plain", steps, "local")),
            ending.enter_context(_trainer(place.fork, directory / "off", steps, "local")),
            ending.enter_context(_trainer(place.fork, directory / "on", steps, "in_memory", cache_config=UNIFIED)),
        ]
        # Step by step in turn, while the other two sleep: what else the machine does falls on each.
        rounds = [[trainer.step() for trainer in trainers] for _ in range(steps - 1)]
    plain, off, on = zip(*rounds[int(steps * WARM_UP) :], strict=True)
    print(f"  median of a step of plain upstream: {statistics.median(plain) * 1e3:.1f} ms")
    yield Ratio("step time of the fork with all off, times plain upstream's", over(off, plain), 1.05, at_least=False)
    yield Ratio("step time with data and caches in memory, times plain upstream's", over(on, plain))


def _trainer(tree: Path, directory: Path, steps: int, kind: str, **more: Any) -> Trainer:
    lab = Lab(directory, tree)
    lab.make(per_aspect=6)
    config = lab.config(
        "off", max_train_steps=steps, gradient_accumulation_steps=1, checkpoint_step_interval=10 * steps, **more
    )
    config["datasets"][0]["type"] = kind
    return Trainer(tree, write_config(config, directory / "config.json"))
