"""What upstream's scan and sampler call: whether the fast start is on, and who answers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice
from typing import Any

from ..run import current
from .captions import captions_once as recorded
from .established import establish, established
from .listing import Files, Listings
from .listing import files_to_match as unmatched
from .listing import walked as walk
from .names import caches_to_match as to_match
from .names import files_to_name as unnamed
from .names import without_suffix
from .scan import scan
from .shared import has_none, lacks_no_entry
from .shared import metadata_from as shared
from .unseen import UnseenIndex, counted

WRITTEN_AT_ONCE = 10_000


def active() -> bool:
    run = current()
    return run is not None and run.settings.fast_start


def certified() -> bool:
    """Asked for by name: what an earlier start established is taken as it stands where nothing has changed."""
    run = current()
    return run is not None and run.settings.optimizations.fast_start is True


def scan_workers(
    backend: Any,
    workers: list[Any],
    files: Sequence[Any],
    known: set[str],
    statistics: dict[str, Any] | None,
    progress: Callable[[int, int], object] | None,
) -> list[Any]:
    """None are left to start where the files have been scanned here; otherwise upstream's own."""
    if active() and scan(backend, [str(file) for file in files], known, statistics, progress):
        return []
    return workers


def unseen_index(sampler: Any, bucket: Any, positions: Sequence[int]) -> UnseenIndex | None:
    """An index of the bucket's unseen samples whose cost does not grow with it; None: upstream's own."""
    if not active():
        return None
    backend = sampler.metadata_backend
    source = counted(backend.aspect_ratio_bucket_indices, str(bucket))
    return UnseenIndex(source, backend.seen_images, positions, sampler._sample_path)


def unseen_samples(index: Any) -> Sequence[str] | None:
    """What upstream copies into a list; None where the index is its own."""
    return index.now() if isinstance(index, UnseenIndex) else None


def captions_once(backend: Any, images: Iterable[Any], asked: dict[str, Any]) -> Iterable[Any]:
    return recorded(backend, images, asked) if active() else images


def walked(backend: Any, top: Any) -> Iterable[tuple[str, list[str], Files]] | None:
    """What `os.walk` gives; None: upstream's own."""
    return walk(backend, top) if active() else None


def latent_folder(subfolders: str) -> str:
    """The same folder, by the name under which upstream looks its latents up."""
    return os.path.normpath(subfolders) if active() else subfolders


def files_to_name(cache: Any, files: Iterable[Any]) -> Iterable[Any]:
    return unnamed(cache, files) if active() else files


def all_processed(cache: Any) -> bool:
    """Upstream reduces a bucket to those of its files that are unprocessed: none, if none are at all."""
    return active() and not cache.local_unprocessed_files


def embeds_established(factory: Any, backend: dict[str, Any], made: dict[str, Any]) -> bool:
    return certified() and established(factory, backend, made)


def embeds_checked(factory: Any, backend: dict[str, Any], made: dict[str, Any], check: Callable[[], Any]) -> Any:
    found = check()
    if certified():
        establish(factory, backend, made)
    return found


def metadata_from(backend: Any, content: bytes, read: Callable[[], Any]) -> Any:
    run = current()
    if run is None or not active():
        return read()
    known: dict[str, str] = {}
    for paths in backend.aspect_ratio_bucket_indices.values():
        known.update(zip(paths, paths, strict=True))
    run.part(Listings).strings = known
    return shared(content, known)


def metadata_complete(backend: Any, paths: set[str]) -> bool:
    return active() and lacks_no_entry(backend.image_metadata, paths)


def with_boxes(backend: Any) -> Any | None:
    """Who is asked for the boxes of each picture; None where none has any."""
    return None if active() and has_none(getattr(backend, "image_metadata", None), "bbox_entities") else backend


def names_without_suffix(cache: Any, files: Any) -> Collection[str] | None:
    """None: upstream's own. Where no picture is left to encode, upstream only counts them."""
    if all_processed(cache):
        return tuple(files)
    return without_suffix(files) if active() else None


def caches_to_match(cache: Any, files: Collection[str], matched: list[str]) -> Iterable[str]:
    return to_match(cache, files, matched) if active() else files


def files_to_match(files: Any, extensions: Any, root: str, matching: list[str]) -> Any:
    """Those of a folder's files that upstream must still compare with the extensions."""
    return unmatched(files, extensions, root, matching) if isinstance(files, Files) else files


def written_at_once(data: Any, file: Any) -> bool:
    """As `json.dump` writes it, by the encoder written in C; False: upstream's own."""
    if not active():
        return False
    if type(data) is not dict or not data:
        file.write(json.dumps(data))
        return True
    # Not the text of a million names in one piece: the heap would keep its room.
    before = "{"
    items = iter(data.items())
    while part := dict(islice(items, WRITTEN_AT_ONCE)):
        file.write(before + json.dumps(part)[1:-1])
        before = ", "
    file.write("}")
    return True
