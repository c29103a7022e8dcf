"""Upstream's own metadata backend over a directory of images, without a Trainer: off is upstream, on is ours."""

from __future__ import annotations

import contextlib
import io
import json
import os
import queue
import random
import resource
import shutil
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from simpletuner.gh200 import runtime
from simpletuner.gh200.config.cache_options import CacheOptions
from simpletuner.gh200.config.sources import read_settings
from simpletuner.gh200.hooks import metadata_backend

NAME = "images"


def arguments(output: Path, **changes: Any) -> Namespace:
    """What upstream's scan reads of a parsed config."""
    usual = {
        "output_dir": str(output),
        "aspect_bucket_worker_count": 1,
        "enable_multiprocessing": False,
        "aspect_bucket_alignment": 8,
        "aspect_bucket_rounding": 2,
        "disable_bucket_pruning": True,
        "ignore_missing_files": False,
        "model_family": "sdxl",
        "model_type": "lora",
    }
    return Namespace(**usual | changes)


@contextlib.contextmanager
def fast_start(on: bool = True) -> Iterator[None]:
    """A run with the fast start on; without one, all is upstream's own code."""
    if not on:
        runtime.end()
        yield
        return
    runtime.begin(read_settings({"gh200_optimizations": {"fast_start": True}}, {}), CacheOptions())
    try:
        yield
    finally:
        runtime.end()


class Alone:
    """The Accelerator of one process."""

    num_processes, process_index, is_main_process, is_local_main_process = 1, 0, True, True
    device = "cpu"

    def wait_for_everyone(self) -> None:
        """Nobody else is there."""


class Scene:
    """A dataset directory with upstream's objects for it; `restart` forgets what a process keeps, not what lies on disk."""

    def __init__(self, directory: Path, dataset: dict[str, Any] | None = None, **changes: Any) -> None:
        self.directory, self.output = directory, directory.parent / f"{directory.name}-output"
        usual = {
            "id": NAME,
            "type": "local",
            "instance_data_dir": str(directory),
            "resolution": 512,
            "resolution_type": "pixel",
        }
        self.dataset = usual | {"dataset_type": "image", "crop": False, "repeats": 0} | (dataset or {})
        self.changes = changes
        self.output.mkdir(parents=True, exist_ok=True)

    def forget_files(self) -> None:
        """All that earlier starts have written."""
        shutil.rmtree(self.output)
        self.output.mkdir()

    def backend(self, data_backend: Any = None) -> Any:
        """Upstream's metadata backend as its factory makes it in a fresh process."""
        from simpletuner.helpers.data_backend.local import LocalDataBackend
        from simpletuner.helpers.metadata.backends.discovery import DiscoveryMetadataBackend
        from simpletuner.helpers.training.state_tracker import StateTracker

        StateTracker.set_args(arguments(self.output, **self.changes))
        StateTracker.all_image_files.clear()
        StateTracker.aspect_resolution_map.clear()
        StateTracker.data_backends.clear()
        StateTracker.set_data_backend_config(NAME, dict(self.dataset))
        with contextlib.suppress(FileNotFoundError):
            (self.output / f"all_image_files_{NAME}.json").unlink()
        backend = DiscoveryMetadataBackend(
            id=NAME,
            instance_data_dir=str(self.directory),
            cache_file=str(self.output / "aspect_ratio_bucket_indices"),
            metadata_file=str(self.output / "aspect_ratio_bucket_metadata"),
            data_backend=data_backend or LocalDataBackend(Alone(), NAME),
            accelerator=Alone(),
            batch_size=self.changes.get("train_batch_size", 4),
            resolution=self.dataset["resolution"],
            resolution_type=self.dataset["resolution_type"],
            minimum_image_size=self.dataset.get("minimum_image_size"),
            minimum_aspect_ratio=self.dataset.get("minimum_aspect_ratio"),
            maximum_aspect_ratio=self.dataset.get("maximum_aspect_ratio"),
            delete_unwanted_images=self.dataset.get("delete_unwanted_images", False),
            delete_problematic_images=self.dataset.get("delete_problematic_images", False),
            max_num_samples=self.dataset.get("max_num_samples"),
        )
        return metadata_backend(backend)

    def scanned(self, on: bool, seed: int = 7, fresh: bool = True, data_backend: Any = None) -> dict[str, Any]:
        """A scan and everything it left behind; a fresh one starts from nothing."""
        if fresh:
            self.forget_files()
        with fast_start(on), queues_that_keep():
            backend = self.backend(data_backend)
            random.seed(seed)
            backend.compute_aspect_ratio_bucket_indices()
            return {
                "buckets": backend.aspect_ratio_bucket_indices,
                "metadata": backend.image_metadata,
                "statistics": backend.filtering_statistics,
                "random": random.getstate(),
                "files": {path.name: json.loads(path.read_text()) for path in self.output.glob("*.json")},
            }


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Without the log lines of SimpleTuner."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        yield


def cpu_seconds() -> float:
    """Of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


@contextlib.contextmanager
def queues_that_let_go() -> Iterator[None]:
    """Upstream's own queues, but what they lost does not keep this process from ending."""
    from simpletuner.helpers.metadata.backends import base

    plain = base.Queue

    def made() -> Any:
        queue = plain()
        queue.cancel_join_thread()
        return queue

    base.Queue = made
    try:
        yield
    finally:
        base.Queue = plain


@contextlib.contextmanager
def queues_that_keep() -> Iterator[None]:
    """Upstream's scan loses what its pipes have not carried when its threads end; what it would give is compared here."""
    from simpletuner.helpers.metadata.backends import base

    plain, base.Queue = base.Queue, queue.Queue
    try:
        yield
    finally:
        base.Queue = plain


def make_images(
    directory: Path, sizes: Sequence[tuple[int, int]], kinds: Sequence[str] = ("png", "jpg", "webp")
) -> list[Path]:
    """Write images of many sizes."""
    directory.mkdir(parents=True, exist_ok=True)
    made = []
    for number, size in enumerate(sizes):
        path = directory / f"image-{number:06}.{kinds[number % len(kinds)]}"
        Image.new("RGB", size, (number % 256, 100, 50)).save(path)
        made.append(path)
    return made


def many_links(directory: Path, originals: Sequence[Path], count: int, per_directory: int = 10_000) -> list[str]:
    """Many names for few images: a million files in half a minute, each an inode only once."""
    made = []
    for number in range(count):
        if number % per_directory == 0:
            parent = directory / f"{number // per_directory:04}"
            parent.mkdir(parents=True, exist_ok=True)
        original = originals[number % len(originals)]
        made.append(f"{parent}/{number:07}{original.suffix}")
        os.link(original, made[-1])
    return made


def tmpfs_directory() -> str:
    """A directory in memory, where files cost no disk."""
    return "/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()
