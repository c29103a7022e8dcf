"""Below a relative instance_data_dir, images in directories of their own are never encoded, and nothing is said."""

from __future__ import annotations

import os
from pathlib import Path

from scene import NAME, OneProcess, dataset, make_images


def reproduce(directory: Path) -> str | None:
    """The fault in one sentence, or None."""
    from simpletuner.helpers.caching.vae import VAECache
    from simpletuner.helpers.data_backend.local import LocalDataBackend

    paths = [*make_images(directory / "images", 2), *make_images(directory / "images" / "more", 3)]
    backend = LocalDataBackend(OneProcess(), NAME)
    # What a start makes of the dataset's entry, without a model: naming needs no more.
    cache = VAECache.__new__(VAECache)
    cache.image_data_backend = cache.cache_data_backend = backend
    cache.cache_dir, cache.hash_filenames, cache.metadata_backend = str(directory / "latents"), True, None
    before = os.getcwd()
    os.chdir(directory)
    try:
        cache.instance_data_dir = dataset({"instance_data_dir": "images"})["instance_data_dir"]
        cache.build_vae_cache_filename_map(paths)
        # The question that process_buckets asks of every image before it encodes it.
        skipped = [path for path in paths if cache._image_filename_from_vaecache_filename(path) is None]
    finally:
        os.chdir(before)
    return f"{len(skipped)} of {len(paths)} images would never be encoded" if skipped else None
