"""Every batch copies and compares its whole bucket, so a batch of a large bucket costs as much as the bucket."""

from __future__ import annotations

import time
from pathlib import Path

from scene import NAME, OneProcess, metadata_backend

SMALL, LARGE, BATCHES = 10_000, 400_000, 60
MOST_GROWTH = 4.0


def seconds_per_batch(directory: Path, count: int) -> float:
    """How long the sampler takes for one batch of a bucket with that many samples."""
    from accelerate import PartialState

    from simpletuner.helpers.multiaspect.sampler import MultiAspectSampler

    PartialState(cpu=True)
    backend = metadata_backend(directory)
    names = [f"/data/{number}.png" for number in range(count)]
    backend.aspect_ratio_bucket_indices = {"1.0": names}
    backend.image_metadata = {name: {"crop_coordinates": (0, 0), "target_size": (64, 64)} for name in names}
    sampler = MultiAspectSampler(
        id=NAME,
        metadata_backend=backend,
        data_backend=backend.data_backend,
        model=None,
        accelerator=OneProcess(),
        batch_size=4,
        caption_strategy="instanceprompt",
        instance_prompt="an image",
    )
    batches = iter(sampler)
    # The first one builds the index.
    next(batches)
    start = time.process_time()
    for _ in range(BATCHES):
        next(batches)
    return (time.process_time() - start) / BATCHES


def reproduce(directory: Path) -> str | None:
    """The fault in one sentence, or None."""
    small, large = (seconds_per_batch(directory / "none", count) for count in (SMALL, LARGE))
    measured = f"a batch costs {large * 1e3:.2f} ms at {LARGE:,} samples and {small * 1e3:.2f} ms at {SMALL:,}"
    return measured if large > MOST_GROWTH * small else None
