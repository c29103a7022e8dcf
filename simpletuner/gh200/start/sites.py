"""What upstream's scan and sampler call: whether the fast start is on, and who answers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain, islice
from typing import Any

from ..run import current
from .captions import captions_once as recorded
from .established import establish, established
from .held import hold, listing_from, unread
from .late import LateDict
from .listing import Files
from .listing import files_to_match as unmatched
from .listing import listed as whole
from .listing import walked as walk
from .names import caches_to_match as to_match
from .names import files_to_name as unnamed
from .names import pictures_to_match as without_latent
from .placed import just_these
from .record import record_beside
from .scan import scan
from .shared import has_none, lacks_no_entry
from .shared import metadata_from as shared
from .text import HELD
from .unseen import UnseenIndex, counted

WRITTEN_AT_ONCE = 10_000


class Unmatched(set[str]):
    """Pictures of which it is known that no latent on disk is theirs."""


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


def listed(backend: Any, top: Any, extensions: Any) -> list[Any] | None:
    """What upstream would return; None: it must look."""
    return whole(backend, top, extensions) if active() else None


def folder_to_hold(held: dict[str, Any], dataset: str, folder: Any) -> Any:
    return hold(held, dataset, folder) if active() else folder


def nothing_new(backend: Any, files: Any) -> bool:
    """Whether no picture of a listing is missing in the buckets."""
    return active() and just_these(backend, files)


def buckets_to_check(backend: Any, files: Any, buckets: Iterable[Any]) -> Iterable[Any]:
    """Those from which upstream must take what is gone."""
    return () if active() and just_these(backend, files) else buckets


def latent_folder(subfolders: str) -> str:
    """The same folder, by the name under which upstream looks its latents up."""
    return os.path.normpath(subfolders) if active() else subfolders


def files_to_name(cache: Any, files: Iterable[Any]) -> Iterable[Any]:
    return unnamed(cache, files) if active() else files


def nothing_left(cache: Any, files: Iterable[str]) -> bool:
    """Whether no file of a bucket is unprocessed: upstream reduces it to those that are."""
    if not active():
        return False
    if not cache.local_unprocessed_files:
        return True
    left = getattr(cache, "_local_unprocessed_file_set", None)
    return left is not None and left().isdisjoint(files)


def embeds_established(factory: Any, backend: dict[str, Any], made: dict[str, Any]) -> bool:
    return certified() and established(factory, backend, made)


def embeds_checked(factory: Any, backend: dict[str, Any], made: dict[str, Any], check: Callable[[], Any]) -> Any:
    found = check()
    if certified():
        establish(factory, backend, made)
    return found


def metadata_from(backend: Any, content: bytes, read: Callable[[], Any]) -> Any:
    if not active():
        return read()
    known = backend.aspect_ratio_bucket_indices.values()
    record = record_beside(backend.cache_file, "metadata") if backend.data_backend.type == "local" else None
    return shared(content, known, record, getattr(backend.accelerator, "is_local_main_process", True))


def metadata_complete(backend: Any, paths: set[str]) -> bool:
    return active() and lacks_no_entry(backend.image_metadata, paths)


def with_boxes(backend: Any) -> Any | None:
    """Who is asked for the boxes of each picture; None where none has any."""
    return None if active() and has_none(getattr(backend, "image_metadata", None), "bbox_entities") else backend


def names_without_suffix(cut: Callable[[], Collection[str]]) -> Collection[str]:
    """Cut when upstream looks for one: not where no picture is left to encode."""
    if not active():
        return cut()
    return LateDict(lambda: dict.fromkeys(cut()).items())


def pictures_to_match(cache: Any, pictures: Callable[[], Collection[str]]) -> Collection[str]:
    """Those that upstream must look for among the latents on disk."""
    found = without_latent(cache) if active() else None
    return pictures() if found is None else Unmatched(found)


def latents_to_match(pictures: Collection[str], latents: Callable[[], Collection[str]]) -> Collection[str]:
    return () if isinstance(pictures, Unmatched) else latents()


def caches_to_match(cache: Any, files: Collection[str], matched: list[str]) -> Iterable[str]:
    return to_match(cache, files, matched) if active() and files else files


def files_to_match(files: Any, extensions: Any, root: str, matching: list[str]) -> Any:
    """Those of a folder's files that upstream must still compare with the extensions."""
    return unmatched(files, extensions, root, matching) if isinstance(files, Files) else files


def written_at_once(data: Any, file: Any) -> bool:
    """As `json.dump` writes it, by what is written in C; False: upstream's own."""
    if not active():
        return False
    paths = unread(data)
    if paths is not None and paths.plain():
        begin, between, end = HELD
        for text in chain([begin], paths.joined(between), [end]):
            file.write(text.decode("ascii"))
        return True
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


def read_at_once(file: Any, read: Callable[[], Any]) -> Any:
    """What upstream loads of its own files; a listing is filled when somebody looks into it."""
    if not active():
        return read()
    text = file.read()
    listing = listing_from(text)
    return json.loads(text) if listing is None else listing
