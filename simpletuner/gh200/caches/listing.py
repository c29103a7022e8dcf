"""Which entries a cache will be asked for, found without upstream's help and looked for again while it is being built."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

# A folder that changes all the time, because its cache is being built, may take this share of the time to list.
_SHARE = 20
_SHORTEST = 1.0


class CacheFiles:
    """The entries of one cache: those of this rank's own samples where upstream says which they are, else the folder's."""

    def __init__(self) -> None:
        self._folders: dict[str, int] = {}
        self._again_at = 0.0

    def changed(self, cache: Any, *, now: bool = False) -> list[str]:
        """All files there are, if there may be others than last time and it is time to look."""
        folder = getattr(cache, "cache_dir", None)
        if not isinstance(folder, str) or not folder:
            return []
        # Set once upstream has listed the dataset; until then nobody knows which entries will be read.
        samples = getattr(cache, "image_path_to_vae_path", None)
        unknown = samples is None and hasattr(cache, "build_vae_cache_filename_map")
        if not now and (unknown or time.monotonic() < self._again_at or not self._touched()):
            return []
        began = time.monotonic()
        found = dict.fromkeys(self._walk(os.path.abspath(folder)))
        self._again_at = time.monotonic() + max(_SHORTEST, _SHARE * (time.monotonic() - began))
        return _of_this_rank(cache, samples, found)

    def _touched(self) -> bool:
        """Whether a folder has got or lost a file since it was listed."""
        return not self._folders or any(_modified(path) != then for path, then in self._folders.items())

    def _walk(self, top: str) -> Iterator[str]:
        waiting, self._folders = [top], {}
        while waiting:
            folder = waiting.pop()
            self._folders[folder] = _modified(folder)
            try:
                with os.scandir(folder) as items:
                    for item in items:
                        if item.is_dir(follow_symlinks=False):
                            waiting.append(item.path)
                        elif item.name.endswith(".pt") and item.is_file():
                            yield item.path
            except OSError:
                continue  # gone again, or not to be looked into: upstream says so when it needs it


def _of_this_rank(cache: Any, samples: Any, found: dict[str, None]) -> list[str]:
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


def _modified(folder: str) -> int:
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return -1
