"""An audio dataset held in memory: trained by upstream's ACE-Step in the fork, compared with the same one on disk."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from .. import process
from ..machine import gpus
from ..place import Place
from ..scenario import Failed, Skipped
from .tiny_audio import SOUNDS, make_sounds
from .tiny_run import Run, TinyRuns, differing_losses, tiny_runs

STEPS = 3
RAMP = {"initial_effective_batch_size": 1, "target_effective_batch_size": 2, "batch_rampup_steps": 2}
WINDOWS = [1, 1, 2]
PICTURES_ONLY = ("resolution", "resolution_type", "minimum_image_size", "crop")


def audio(place: Place, options: argparse.Namespace) -> str:
    with tiny_runs(place, "audio", options.keep) as runs:
        environment = _environment(runs)
        make_sounds(runs.folder / "sounds")
        _make_model(runs, environment)
        seen = {kind: _train(runs, kind, environment) for kind in ("local", "in_memory")}
        _check(seen["local"], seen["in_memory"])
        run, cached = seen["in_memory"]
        return (
            f"{len(SOUNDS)} sounds staged, {len(run.steps)} steps, windows {run.windows()}, losses, weights and "
            f"{len(cached) - 1} cache files equal to those of type local"
        )


def _environment(runs: TinyRuns) -> dict[str, str]:
    """A real ffmpeg on the path: upstream loads sounds from files through it."""
    tools = runs.folder / "tools"
    tools.mkdir()
    if shutil.which("ffmpeg") is None:
        try:
            from imageio_ffmpeg import get_ffmpeg_exe

            (tools / "ffmpeg").symlink_to(get_ffmpeg_exe())
        except (ImportError, RuntimeError) as problem:
            raise Skipped(f"upstream loads sounds with ffmpeg, which is not on PATH: {problem}") from None
    path = [str(Path(sys.executable).parent), str(tools), os.environ.get("PATH", "")]
    return {"PATH": os.pathsep.join(path)}


def _make_model(runs: TinyRuns, environment: dict[str, str]) -> None:
    """In a process of its own: its classes are the fork's."""
    maker = str(Path(__file__).with_name("tiny_audio.py"))
    done = process.run(
        [sys.executable, maker, str(runs.folder / "model")],
        cwd=runs.folder,
        environment=runs.place.environment(runs.place.fork) | environment,
        log=runs.folder / "model.log",
        limit=300,
    )
    if done.code:
        raise Failed(f"the tiny audio model could not be made: {done.complaint()}")


def _train(runs: TinyRuns, kind: str, environment: dict[str, str]) -> tuple[Run, dict[str, bytes]]:
    config = runs.config(model_family="ace_step", model_flavour="base", max_train_steps=STEPS)
    config["gh200_optimizations"] |= RAMP
    for key in PICTURES_ONLY[:2]:
        del config[key]
    dataset = config["datasets"][0]
    for key in PICTURES_ONLY:
        del dataset[key]
    dataset |= {"id": "sounds", "type": kind, "dataset_type": "audio", "instance_data_dir": str(runs.folder / "sounds")}
    if kind == "local":
        del dataset["in_memory"]
    run = runs.train(config, more=environment, quick=True)
    weights = {"weights": _tensors(run.output / "pytorch_lora_weights.safetensors")}
    caches = {
        # Upstream compresses cache files, and gzip writes the time into them.
        str(path.relative_to(runs.folder)): gzip.decompress(path.read_bytes())
        for path in sorted((runs.folder / "cache").rglob("*.pt"))
    }
    return run, weights | caches


def _tensors(path: Path) -> bytes:
    """Weights without the file's own metadata, which has the date in it."""
    from safetensors import deserialize

    found: list[tuple[str, Any]] = sorted(deserialize(path.read_bytes()), key=lambda entry: entry[0])
    shapes = json.dumps([(name, entry["dtype"], entry["shape"]) for name, entry in found])
    return shapes.encode() + b"".join(bytes(entry["data"]) for _, entry in found)


def _check(local: tuple[Run, dict[str, bytes]], in_memory: tuple[Run, dict[str, bytes]]) -> None:
    run, files = in_memory
    problems = []
    if "sounds" not in str((run.end.get("runtime") or {}).get("on", {}).get("in-memory datasets", "")):
        problems.append("the dataset was not held in memory")
    if run.windows() != WINDOWS:
        problems.append(f"windows {run.windows()} instead of the schedule's {WINDOWS}")
    if differing_losses(run, local[0]):
        problems.append(f"losses {run.losses()}, with type local {local[0].losses()}")
    latents = [name for name in files if f"{os.sep}vae{os.sep}" in name]
    if len(latents) != len(SOUNDS):
        problems.append(f"{len(latents)} sounds were encoded, there are {len(SOUNDS)}")
    names = files.keys() | local[1].keys()
    # What a GPU computed may differ in its last bits; that it is there may not.
    told = (lambda content: content is None) if gpus() else (lambda content: content)
    differing = sorted(name for name in names if told(files.get(name)) != told(local[1].get(name)))
    if differing:
        problems.append(f"differing from type local: {', '.join(differing)}")
    if problems:
        raise Failed("; ".join(problems))
