"""Which entries a cache will be asked for, found without upstream's help."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any


def samples_known(cache: Any) -> bool:
    """Set once upstream has listed the dataset; until then nobody knows which latents will be read."""
    return not hasattr(cache, "build_vae_cache_filename_map") or _samples(cache) is not None


def entries_of(cache: Any) -> list[str]:
    """The files of this rank's own samples where upstream says which they are, else all of the cache's directory."""
    directory = getattr(cache, "cache_dir", None)
    if not isinstance(directory, str) or not directory:
        return []
    found = dict.fromkeys(_walk(os.path.abspath(directory)))
    samples = _samples(cache)
    shard = getattr(getattr(cache, "metadata_backend", None), "aspect_ratio_bucket_indices", None)
    if not isinstance(samples, dict) or not isinstance(shard, dict):
        return list(found)
    try:
        paths = [samples.get(image) for bucket in list(shard.values()) for image in list(bucket)]
    except RuntimeError:  # upstream changes the lists meanwhile
        return list(found)
    # Where the two lists spell paths differently, this rank's part is not known after all.
    known = [path for path in dict.fromkeys(paths) if path is not None]
    return [path for path in known if path in found] if known else list(found)


def _samples(cache: Any) -> Any:
    return getattr(cache, "image_path_to_vae_path", None)


def _walk(top: str) -> Iterator[str]:
    waiting = [top]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as items:
                for item in items:
                    if item.is_dir(follow_symlinks=False):
                        waiting.append(item.path)
                    elif item.name.endswith(".pt") and item.is_file():
                        yield item.path
        except OSError:
            continue  # gone again, or not to be looked into: upstream says so when it needs it
