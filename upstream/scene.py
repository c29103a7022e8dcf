"""The least that SimpleTuner's dataset scan and sampler need: a directory of images, parsed arguments, one process."""

from __future__ import annotations

import importlib.util
from argparse import Namespace
from pathlib import Path
from typing import Any

from PIL import Image

NAME = "images"
IN_OUR_FORK = importlib.util.find_spec("simpletuner.gh200") is not None


class CannotTry(Exception):
    """This machine or environment cannot show the fault, whether it is there or not."""


class OneProcess:
    """An Accelerator's fields in a run of one process."""

    num_processes, process_index, is_main_process, is_local_main_process = 1, 0, True, True


def make_images(directory: Path, count: int) -> list[str]:
    """Write small images; returns their paths."""
    directory.mkdir(parents=True)
    paths = [directory / f"{number:04}.png" for number in range(count)]
    for path in paths:
        Image.new("RGB", (96, 64)).save(path)
    return [str(path) for path in paths]


def metadata_backend(directory: Path) -> Any:
    """What a start of the trainer makes for one local dataset; JSON files of an earlier start are found again."""
    from simpletuner.helpers.data_backend.local import LocalDataBackend
    from simpletuner.helpers.metadata.backends.discovery import DiscoveryMetadataBackend
    from simpletuner.helpers.training.state_tracker import StateTracker

    output = directory.parent / "output"
    output.mkdir(exist_ok=True)
    StateTracker.set_args(
        Namespace(
            output_dir=str(output),
            aspect_bucket_worker_count=12,
            enable_multiprocessing=False,
            aspect_bucket_alignment=8,
            aspect_bucket_rounding=2,
            disable_bucket_pruning=True,
            ignore_missing_files=False,
            model_family="sdxl",
        )
    )
    StateTracker.all_image_files.clear()
    config = {"id": NAME, "type": "local", "dataset_type": "image", "crop": False, "repeats": 0}
    config |= {"instance_data_dir": str(directory), "resolution": 64, "resolution_type": "pixel"}
    StateTracker.set_data_backend_config(NAME, config)
    backend = DiscoveryMetadataBackend(
        id=NAME,
        instance_data_dir=str(directory),
        cache_file=str(output / "buckets"),
        metadata_file=str(output / "metadata"),
        data_backend=LocalDataBackend(OneProcess(), NAME),
        accelerator=OneProcess(),
        batch_size=1,
        resolution=64,
        resolution_type="pixel",
    )
    if IN_OUR_FORK:
        from simpletuner.gh200.hooks import metadata_backend as scanned

        return scanned(backend)
    return backend


def dataset(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry of the dataset file as SimpleTuner's factory gets it."""
    if IN_OUR_FORK:
        from simpletuner.gh200.backends.scan.directories import absolute_directories

        return absolute_directories([entry])[0]
    return entry


def use_our_fork() -> bool:
    """In the GH200 fork its fast start is turned on; in plain SimpleTuner there is nothing to turn on."""
    if not IN_OUR_FORK:
        return False
    from simpletuner.gh200.backends.scan.dummy_scheduler import provide
    from simpletuner.gh200.config.cache_options import CacheOptions
    from simpletuner.gh200.config.sources import read_settings
    from simpletuner.gh200.runtime import begin

    provide()
    begin(read_settings({"gh200_optimizations": {"fast_start": True}}, {}), CacheOptions())
    return True
