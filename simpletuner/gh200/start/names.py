"""The names of cached latents, made once: upstream's own function names each picture of a listing, a record keeps them."""

from __future__ import annotations

import os
from array import array
from collections.abc import Collection, Iterable, Iterator
from operator import methodcaller
from pathlib import Path
from typing import Any

from simpletuner.helpers.caching.vae import VAECache
from simpletuner.helpers.training.state_tracker import StateTracker

from .record import digest_of, load, record_beside, save
from .text import packed, unpacked

# The listing that the places belong to, places in it, and names below the cache's folder for when it has changed.
Kept = tuple[bytes, bytes, bytes]

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
    listed = list(StateTracker.get_vae_cache_files(data_backend_id=cache.id))
    kept: Kept | None = load(file, key)
    if kept is None:
        return _named_by_upstream(cache, paths, listed, file, key)
    if kept[0] == digest_of(listed):
        named = list(map(listed.__getitem__, array("Q", kept[1])))
    else:
        named = _listed_again(kept[2], os.path.abspath(cache.cache_dir), listed)
        if set(named) <= set(listed):
            _keep(cache, named, listed, file, key)
    cache.image_path_to_vae_path.update(zip(paths, named, strict=True))
    cache.vae_path_to_image_path.update(zip(named, paths, strict=True))
    return ()


def _listed_again(names: bytes, folder: str, listed: list[str]) -> list[str]:
    """As strings that the listing of the cache has already."""
    strings = dict(zip(listed, listed, strict=True))
    named: list[str] = []
    for part in unpacked(names):
        whole = [folder + name for name in part]
        named += map(strings.get, whole, whole)
    return named


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


def _named_by_upstream(cache: Any, paths: list[str], listed: list[str], file: Path, key: object) -> Iterator[str]:
    yield from paths
    _keep(cache, [cache.image_path_to_vae_path[path] for path in paths], listed, file, key)


def _keep(cache: Any, named: list[str], listed: list[str], file: Path, key: object) -> None:
    folder = os.path.abspath(cache.cache_dir)
    if not getattr(cache.accelerator, "is_local_main_process", True) or not all(n.startswith(folder) for n in named):
        return
    places = {name: place for place, name in enumerate(listed)}
    found = array("Q", map(places.__getitem__, named)) if set(named) <= places.keys() else array("Q")
    listing = digest_of(listed) if found else b""
    save(file, key, (listing, found.tobytes(), packed(name.removeprefix(folder) for name in named)))


def _key(cache: Any, paths: list[str]) -> object:
    """All that upstream's naming depends on but its code, which the version stands for."""
    folders = str(cache.instance_data_dir), str(cache.cache_dir), os.getcwd()
    return cache.hash_filenames, *folders, digest_of(paths)
