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
from itertools import pairwise
from pathlib import Path
from typing import Any

from .bench_result import Ratio, Result, Settings, over

FORK = Path(__file__).resolve().parents[2]
PRISTINE = FORK.parent / "pristine"
MOVED = "build/quickstart"
ROUNDS = 3  # each is three processes that import the trainer
WARM_UP = 0.25  # of the steps: the first ones fill caches
# Upstream's scan stops listening when its queues look empty, which they do while an entry is still on its way: on a
# busy machine a first run can miss pictures it has scanned, and stops with one of these.
LOST_SCAN, ATTEMPTS = ("that did not have its metadata", "Dataset produced no usable samples"), 2
CACHES = {"cache_config": {"vae_cache_type": "unified_memory", "text_cache_type": "unified_memory"}}
# Seen from outside and alike in every tree: when each optimizer step was over.
DRIVER = """
import atexit, json, os, runpy, sys, time
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

times = []
register_optimizer_step_post_hook(lambda *_: times.append(time.perf_counter()))
atexit.register(lambda: json.dump(times, open(os.environ["BENCH_STEP_TIMES"], "w")))
if not torch.cuda.is_available():
    torch.Tensor.pin_memory = lambda self, *_: self  # plain upstream cannot do without an accelerator
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def measure(settings: Settings) -> Iterator[Result]:
    missing = [
        path
        for path in (FORK / "scripts" / "quickstart", FORK / "simpletuner" / "train.py", PRISTINE)
        if not path.exists()
    ]
    if missing:
        print(
            f"skipped: there is no {missing[0]}; ./execute_gh200_rebase.sh --skip-tests builds the fork and keeps the pristine tree"
        )
        return
    steps, rounds = (8, 1) if settings.quick else (120, min(settings.rounds, ROUNDS))
    with tempfile.TemporaryDirectory(dir=settings.folder) as name:
        folder = Path(name)
        _make_model_and_images(folder)
        ways = {
            "plain upstream": (PRISTINE, _config(folder / "plain", steps, "local", {})),
            "fork, all off": (FORK, _config(folder / "off", steps, "local", {})),
            "fork, data and caches in memory": (FORK, _config(folder / "on", steps, "in_memory", CACHES)),
        }
        taken: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(rounds):
            for way, (tree, config) in ways.items():
                taken[way].append(_step_time(tree, config))
                print(f"  round {number + 1}, {way}: {taken[way][-1] * 1e3:.1f} ms per step", flush=True)
    plain, off, on = (taken[way] for way in ways)
    yield Ratio("step time of the fork with all off, times plain upstream's", over(off, plain), 1.05, at_least=False)
    yield Ratio("step time with data and caches in memory, times plain upstream's", over(on, plain))


def _make_model_and_images(folder: Path) -> None:
    tools = str(FORK / "scripts" / "quickstart")
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); folder = Path(sys.argv[2]); "
        "import tiny_dataset, tiny_model; tiny_model.make_model(folder / 'model'); tiny_dataset.make_dataset(folder / 'images')"
    )
    subprocess.run([sys.executable, "-c", code, tools, str(folder)], check=True, capture_output=True)


def _config(own: Path, steps: int, kind: str, more: dict[str, Any]) -> Path:
    """The quick start's plain config, moved: model and images are shared, caches and outputs are not."""
    own.mkdir()
    (own / "model").symlink_to(own.parent / "model")
    shutil.copytree(own.parent / "images", own / "images")
    config = _moved("quickstart_off.json", own) | more
    datasets = _moved("quickstart_datasets.json", own)
    config |= {
        "data_backend_config": str(own / "datasets.json"),
        "max_train_steps": steps,
        "gradient_accumulation_steps": 1,
    }
    config |= {"checkpoint_step_interval": 10 * steps, "aspect_bucket_worker_count": 1}
    datasets = [entry | {"type": kind} if entry["dataset_type"] == "image" else entry for entry in datasets]
    (own / "datasets.json").write_text(json.dumps(datasets))
    written = own / "config.json"
    written.write_text(json.dumps(config))
    return written


def _moved(name: str, own: Path) -> Any:
    return json.loads((FORK / "config" / name).read_text(encoding="utf-8").replace(MOVED, str(own)))


def _step_time(tree: Path, config: Path) -> float:
    """Median seconds of a step, without the first ones, in a process of its own."""
    times = config.with_name("times.json")
    environment = os.environ | {
        "PYTHONPATH": str(tree),
        "CONFIG_BACKEND": "json",
        "CONFIG_PATH": str(config),
        "BENCH_STEP_TIMES": str(times),
        "HF_HUB_OFFLINE": "1",
        "PYTHONHASHSEED": "0",
    }
    environment.pop("SIMPLETUNER_SKIP_TORCH", None)
    command = [sys.executable, "-c", DRIVER, str(tree / "simpletuner" / "train.py")]
    for _ in range(ATTEMPTS):
        shutil.rmtree(config.parent / "output", ignore_errors=True)
        (config.parent / "output").mkdir()
        done = subprocess.run(command, cwd=config.parent, env=environment, capture_output=True, text=True, check=False)
        if not any(words in done.stdout + done.stderr for words in LOST_SCAN):
            break
        for left in config.parent.glob("images/aspect_ratio*"):
            left.unlink()
    if done.returncode or not times.is_file():
        raise RuntimeError(
            f"training in {tree} failed with exit code {done.returncode}:\n{done.stdout[-1500:]}{done.stderr[-1500:]}"
        )
    ends = json.loads(times.read_text())
    times.unlink()
    spans = [after - before for before, after in pairwise(ends)]
    return statistics.median(spans[int(len(spans) * WARM_UP) :])
