"""A whole training step of the real trainer on a tiny model: plain upstream, the fork with all off, the fork with caches."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

from ..place import ROOT, find_place
from .result import Ratio, Result, Settings, over

MOVED = "build/quickstart"
WARM_UP = 0.25  # of the steps: the first ones fill caches
CACHES = {"cache_config": {"vae_cache_type": "unified_memory", "text_cache_type": "unified_memory"}}
# Seen from outside and alike in every tree: after each optimizer step the trainer says how long it took and waits.
DRIVER = """
import os, runpy, sys, time
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

said, turn = int(sys.argv[2]), int(sys.argv[3])
began = time.perf_counter()

def hand_over(*_):
    global began
    os.write(said, f"{time.perf_counter() - began}\\n".encode())
    os.read(turn, 1)
    began = time.perf_counter()

register_optimizer_step_post_hook(hand_over)
if not torch.cuda.is_available():
    torch.Tensor.pin_memory = lambda self, *_: self  # plain upstream cannot do without an accelerator
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def measure(settings: Settings) -> Iterator[Result]:
    try:
        place = find_place()
    except FileNotFoundError as missing:
        print("skipped: " + "; ".join(map(str, missing.args)))
        return
    if place.pristine is None:
        print("skipped: there is no pristine tree; ./execute_gh200_rebase.sh --skip-tests keeps it beside the fork")
        return
    steps = 8 if settings.quick else 24 * settings.rounds
    with tempfile.TemporaryDirectory(dir=settings.folder) as name, ExitStack() as ending:
        folder = Path(name)
        _make_model_and_images(folder)
        print("  starting three trainers, one after the other; then they take their steps in turn", flush=True)
        trainers = [
            ending.enter_context(Trainer(place.pristine, _config(place.fork, folder / "plain", steps, "local", {}))),
            ending.enter_context(Trainer(place.fork, _config(place.fork, folder / "off", steps, "local", {}))),
            ending.enter_context(Trainer(place.fork, _config(place.fork, folder / "on", steps, "in_memory", CACHES))),
        ]
        # Step by step in turn, while the other two sleep: what else the machine does falls on each.
        rounds = [[trainer.step() for trainer in trainers] for _ in range(steps - 1)]
    plain, off, on = zip(*rounds[int(steps * WARM_UP) :], strict=True)
    print(f"  median of a step of plain upstream: {statistics.median(plain) * 1e3:.1f} ms")
    yield Ratio("step time of the fork with all off, times plain upstream's", over(off, plain), 1.05, at_least=False)
    yield Ratio("step time with data and caches in memory, times plain upstream's", over(on, plain))


class Trainer:
    """A training run in a process of its own that takes one step each time it is told to."""

    def __init__(self, tree: Path, config: Path) -> None:
        self._printed = config.with_name("printed.log")
        steps, said = os.pipe()
        turn, self._turns = os.pipe()
        environment = os.environ | {
            "PYTHONPATH": str(tree),
            "CONFIG_BACKEND": "json",
            "CONFIG_PATH": str(config),
            "HF_HUB_OFFLINE": "1",
            "PYTHONHASHSEED": "0",
            # Threads that wait must not spin while it is another trainer's turn.
            "OMP_WAIT_POLICY": "PASSIVE",
        }
        environment.pop("SIMPLETUNER_SKIP_TORCH", None)
        command = [sys.executable, "-c", DRIVER, str(tree / "simpletuner" / "train.py"), str(said), str(turn)]
        with self._printed.open("w") as printed:
            self._process = subprocess.Popen(
                command, cwd=config.parent, env=environment, stdout=printed, stderr=printed, pass_fds=(said, turn)
            )
        os.close(said)
        os.close(turn)
        self._steps = os.fdopen(steps)
        self._read()

    def step(self) -> float:
        """Seconds of the next step."""
        # A trainer that is gone is reported by the read that follows.
        with suppress(BrokenPipeError):
            os.write(self._turns, b".")
        return self._read()

    def _read(self) -> float:
        if line := self._steps.readline():
            return float(line)
        code = self._process.wait()
        raise RuntimeError(f"training ended with exit code {code}:\n{self._printed.read_text()[-3000:]}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._steps.close()
        os.close(self._turns)


def _make_model_and_images(folder: Path) -> None:
    tools = str(ROOT)
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); folder = Path(sys.argv[2]); "
        "from gh200_lab.quickstart import tiny_dataset, tiny_model; tiny_model.make_model(folder / 'model'); tiny_dataset.make_dataset(folder / 'images')"
    )
    subprocess.run([sys.executable, "-c", code, tools, str(folder)], check=True, capture_output=True)


def _config(fork: Path, own: Path, steps: int, kind: str, more: dict[str, Any]) -> Path:
    """The quick start's plain config, moved: model and images are shared, caches and outputs are not."""
    (own / "output").mkdir(parents=True)
    (own / "model").symlink_to(own.parent / "model")
    shutil.copytree(own.parent / "images", own / "images")
    config = _moved(fork, "quickstart_off.json", own) | more
    datasets = _moved(fork, "quickstart_datasets.json", own)
    config |= {
        "data_backend_config": str(own / "datasets.json"),
        "max_train_steps": steps,
        "gradient_accumulation_steps": 1,
        "checkpoint_step_interval": 10 * steps,
    }
    datasets = [entry | {"type": kind} if entry["dataset_type"] == "image" else entry for entry in datasets]
    (own / "datasets.json").write_text(json.dumps(datasets))
    written = own / "config.json"
    written.write_text(json.dumps(config))
    return written


def _moved(fork: Path, name: str, own: Path) -> Any:
    return json.loads((fork / "config" / name).read_text(encoding="utf-8").replace(MOVED, str(own)))
