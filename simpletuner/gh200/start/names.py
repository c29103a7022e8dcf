"""The names of cached latents, made once: upstream's own function names each picture of a listing, a record keeps them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from operator import methodcaller
from typing import Any

from simpletuner.helpers.caching.vae import VAECache
from simpletuner.helpers.training.state_tracker import StateTracker

from .record import digest_of, load, record_beside, save
from .text import packed, unpacked

_IS_LATENT = methodcaller("endswith", ".pt")
# Of such a name `os.path.splitext` cuts nothing.
_ENDS_ODDLY = methodcaller("endswith", ("/", "."))


def files_to_name(cache: Any, files: Iterable[Any]) -> Iterable[Any]:
    """Those that upstream must still name: none if it has named just these before; its two maps are filled then."""
    metadata = cache.metadata_backend
    if metadata is None or cache.image_data_backend.type != "local" or cache.cache_data_backend.type != "local":
        return files
    paths = list(files)
    if not set(map(type, paths)) <= {str}:
        return paths
    file, key = record_beside(metadata.cache_file, "latents"), _key(cache, paths)
    names = load(file, key)
    if names is None:
        return _named_by_upstream(cache, paths, file, key)
    folder = os.path.abspath(cache.cache_dir)
    # The listing of the cache has these names already: one string each.
    listed = {name: name for name in StateTracker.get_vae_cache_files(data_backend_id=cache.id)}
    named: list[str] = []
    for part in unpacked(names):
        whole = [folder + name for name in part]
        named += map(listed.get, whole, whole)
    cache.image_path_to_vae_path.update(zip(paths, named, strict=True))
    cache.vae_path_to_image_path.update(zip(named, paths, strict=True))
    return ()


def without_suffix(files: Collection[str]) -> set[str] | None:
    """As `os.path.splitext` cuts latents' names; None where one is not plainly that."""
    if not _all_latents(files):
        return None
    names = {file[:-3] for file in files}
    return None if "" in names or any(map(_ENDS_ODDLY, names)) else names


def caches_to_match(cache: Any, files: Collection[str], matched: list[str]) -> Iterable[str]:
    """Those that upstream must look up one by one: none where their own names are all it would look up."""
    if type(cache) is not VAECache or os.environ.get("SIMPLETUNER_LOG_LEVEL") == "DEBUG":
        return files
    if not _all_latents(files):
        return files
    matched += [image for image in map(cache.vae_path_to_image_path.get, files) if image is not None]
    return ()


def _all_latents(files: Collection[Any]) -> bool:
    return set(map(type, files)) <= {str} and all(map(_IS_LATENT, files))


def _named_by_upstream(cache: Any, paths: list[str], file: Any, key: object) -> Iterator[str]:
    yield from paths
    folder = os.path.abspath(cache.cache_dir)
    names = [cache.image_path_to_vae_path[path] for path in paths]
    if getattr(cache.accelerator, "is_local_main_process", True) and all(name.startswith(folder) for name in names):
        save(file, key, packed(name.removeprefix(folder) for name in names))


def _key(cache: Any, paths: list[str]) -> object:
    """All that upstream's naming depends on but its code, which the version stands for."""
    folders = str(cache.instance_data_dir), str(cache.cache_dir), os.getcwd()
    return cache.hash_filenames, *folders, digest_of(paths)
