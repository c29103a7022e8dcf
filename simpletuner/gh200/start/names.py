"""The names of cached latents, made once: upstream's own function names each picture of a listing, a record keeps them.

A second record says which pictures of a listing had no latent in a listing of latents. As long as both listings are the same,
nothing is named and nothing is compared: upstream's maps are filled when somebody asks for a name.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Collection, Iterable, Iterator
from operator import methodcaller
from pathlib import Path
from typing import Any

from simpletuner.helpers.caching.vae import VAECache
from simpletuner.helpers.training.state_tracker import StateTracker

from .held import digest_of_listing, unread
from .late import LateDict
from .record import load, record_beside, save
from .text import packed, unpacked

# A listing of latents, and the pictures that had none there.
Lacking = tuple[bytes, bytes]

_IS_LATENT = methodcaller("endswith", ".pt")
# The listing whose pictures a cache has names of: upstream may list anew and compare with the names it has.
NAMED = "_gh200_named"


def files_to_name(cache: Any, files: Iterable[Any]) -> Iterable[Any]:
    """Those that upstream must still name: none if it has named just these before. Its two maps are filled then."""
    if not _plain(cache):
        return files
    # Not the listing itself: upstream's maps stay what they are when it lists anew.
    paths = unread(files) or list(files)
    if isinstance(paths, list) and not set(map(type, paths)) <= {str}:
        return paths
    pictures = paths if isinstance(paths, list) else files
    setattr(cache, NAMED, digest_of_listing(pictures))
    if _lacking(cache, pictures) is not None:
        cache.image_path_to_vae_path = LateDict(lambda: zip(paths, _names_of(cache, list(paths)), strict=True))
        cache.vae_path_to_image_path = LateDict(lambda: zip(_names_of(cache, list(paths)), paths, strict=True))
        return ()
    named = _recorded(cache, list(paths))
    if named is None:
        return _named_by_upstream(cache, list(paths))
    cache.image_path_to_vae_path.update(zip(paths, named, strict=True))
    cache.vae_path_to_image_path.update(zip(named, paths, strict=True))
    return ()


def pictures_to_match(cache: Any) -> set[str] | None:
    """Those that have no latent, where that is known; None: upstream must compare."""
    # Upstream prints what it compared.
    if not _plain(cache) or not _named(cache) or os.environ.get("SIMPLETUNER_LOG_LEVEL") == "DEBUG":
        return None
    lacking = _lacking(cache, _pictures(cache))
    return None if lacking is None else set(lacking)


def caches_to_match(cache: Any, files: Collection[str], matched: list[str]) -> Iterable[str]:
    """Those that upstream must look up one by one: none where their own names are all it would look up."""
    if type(cache) is not VAECache or os.environ.get("SIMPLETUNER_LOG_LEVEL") == "DEBUG" or not _all_latents(files):
        return files
    matched += [image for image in map(cache.vae_path_to_image_path.get, files) if image is not None]
    if _plain(cache) and _named(cache) and getattr(cache.accelerator, "is_local_main_process", True):
        pictures, found = _pictures(cache), set(matched)
        listed = StateTracker.get_vae_cache_files(data_backend_id=cache.id)
        lacking = packed(path for path in pictures if path not in found)
        save(_file(cache, "lacking"), _key(cache, pictures), (digest_of_listing(listed), lacking))
    return ()


def _plain(cache: Any) -> bool:
    local = cache.image_data_backend.type == cache.cache_data_backend.type == "local"
    return cache.metadata_backend is not None and local


def _named(cache: Any) -> bool:
    return bool(getattr(cache, NAMED, None) == digest_of_listing(_pictures(cache)))


def _pictures(cache: Any) -> Collection[str]:
    return StateTracker.get_image_files(data_backend_id=cache.id) or ()


def _lacking(cache: Any, pictures: Iterable[str]) -> list[str] | None:
    """The pictures without a latent, if the latents on disk are those they were compared with."""
    known: Lacking | None = load(_file(cache, "lacking"), _key(cache, pictures))
    if known is None or known[0] != digest_of_listing(StateTracker.get_vae_cache_files(data_backend_id=cache.id)):
        return None
    return [path for part in unpacked(known[1]) for path in part]


def _recorded(cache: Any, paths: list[str]) -> list[str] | None:
    names: bytes | None = load(_file(cache, "latents"), _key(cache, paths))
    folder = os.path.abspath(cache.cache_dir)
    return None if names is None else [folder + name for part in unpacked(names) for name in part]


def _names_of(cache: Any, paths: list[str]) -> list[str]:
    """Late, so that the record may be gone: then upstream's own loop makes them."""
    named = _recorded(cache, paths)
    if named is None:
        alone = copy.copy(cache)
        alone.metadata_backend = None
        alone.build_vae_cache_filename_map(paths)
        named = [alone.image_path_to_vae_path[path] for path in paths]
    return named


def _all_latents(files: Collection[Any]) -> bool:
    return set(map(type, files)) <= {str} and all(map(_IS_LATENT, files))


def _named_by_upstream(cache: Any, paths: list[str]) -> Iterator[str]:
    yield from paths
    named, folder = [cache.image_path_to_vae_path[path] for path in paths], os.path.abspath(cache.cache_dir)
    if getattr(cache.accelerator, "is_local_main_process", True) and all(name.startswith(folder) for name in named):
        save(_file(cache, "latents"), _key(cache, paths), packed(name.removeprefix(folder) for name in named))


def _file(cache: Any, what: str) -> Path:
    return record_beside(cache.metadata_backend.cache_file, what, str(cache.cache_dir))


def _key(cache: Any, pictures: Iterable[str]) -> object:
    """All that upstream's naming depends on but its code, which the version stands for."""
    folders = str(cache.instance_data_dir), str(cache.cache_dir), os.getcwd()
    return cache.hash_filenames, *folders, digest_of_listing(pictures)
