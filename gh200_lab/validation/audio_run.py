"""An audio dataset in RAM: trained by upstream's ACE-Step in the fork, compared with the same one on disk."""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

from ..machine import gpus
from ..place import Place, environment
from ..scenario import Failed, Skipped
from ..tiny.audio import TONES, make_audio
from ..tiny.lab import Lab
from ..tiny.make import make_audio_model
from ..tiny.run import Run, cached, differing_losses, weights

STEPS = 3
RAMP = {"initial_effective_batch_size": 1, "target_effective_batch_size": 2, "batch_rampup_steps": 2}
WINDOWS = [1, 1, 2]
IMAGES_ONLY = ("resolution", "resolution_type", "minimum_image_size", "crop")
Seen = tuple[Run, dict[str, bytes], dict[str, str]]


def audio(place: Place, options: argparse.Namespace) -> str:
    """Train on audio in RAM and from disk, and compare."""
    with place.directory("audio", options.keep) as directory:
        lab = Lab(directory, place.fork)
        path = _path_with_ffmpeg(directory / "tools", environment(place.fork)["PATH"])
        make_audio(directory / "audio")
        make_audio_model(directory / "model", place.fork)
        seen = {kind: _train(lab, kind, path) for kind in ("local", "in_memory")}
        _check(seen["local"], seen["in_memory"])
        run, caches, _ = seen["in_memory"]
        return (
            f"{len(TONES)} audio files staged, {len(run.steps)} steps, windows {run.windows()}, losses, weights and "
            f"{len(caches)} cache files equal to those of type local"
        )


def _path_with_ffmpeg(tools: Path, path: str) -> str:
    """A real ffmpeg: SimpleTuner loads audio files through it."""
    tools.mkdir()
    if shutil.which("ffmpeg") is None:
        try:
            from imageio_ffmpeg import get_ffmpeg_exe

            (tools / "ffmpeg").symlink_to(get_ffmpeg_exe())
        except (ImportError, RuntimeError) as problem:
            raise Skipped(f"SimpleTuner loads audio with ffmpeg, which is not on PATH: {problem}") from None
    return f"{path}{os.pathsep}{tools}"


def _train(lab: Lab, kind: str, path: str) -> Seen:
    config = lab.config(model_family="ace_step", model_flavour="base", max_train_steps=STEPS)
    config["gh200_optimizations"] |= RAMP
    for key in IMAGES_ONLY[:2]:
        del config[key]
    dataset = config["datasets"][0]
    for key in IMAGES_ONLY:
        del dataset[key]
    dataset |= {
        "id": "audio",
        "type": kind,
        "dataset_type": "audio",
        "instance_data_dir": str(lab.directory / "audio"),
    }
    if kind == "local":
        del dataset["in_memory"]
    run = lab.train(kind, config, variables={"PATH": path})
    return run, cached(lab.directory / "cache"), weights(run.output)


def _check(local: Seen, in_memory: Seen) -> None:
    run, caches, tensors = in_memory
    problems = []
    if "audio" not in str(run.features().get("in-memory datasets", "")):
        problems.append("the dataset was not staged")
    if run.windows() != WINDOWS:
        problems.append(f"windows {run.windows()} instead of the schedule's {WINDOWS}")
    if differing_losses(run, local[0]):
        problems.append(f"losses {run.losses()}, with type local {local[0].losses()}")
    latents = [name for name in caches if name.startswith(f"vae{os.sep}")]
    if len(latents) != len(TONES):
        problems.append(f"{len(latents)} audio files were encoded, there are {len(TONES)}")
    files: dict[str, bytes | str] = {**caches, **tensors}
    expected: dict[str, bytes | str] = {**local[1], **local[2]}
    # What a GPU computed may differ in its last bits; that it is there may not.
    differing = files.keys() ^ expected.keys()
    if not gpus():
        differing |= {name for name in files.keys() & expected.keys() if files[name] != expected[name]}
    if differing or not tensors:
        problems.append(f"differing from type local: {', '.join(sorted(differing)) or 'no weights in either'}")
    if problems:
        raise Failed("; ".join(problems))
