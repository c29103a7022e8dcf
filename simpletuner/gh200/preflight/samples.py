"""The images of one dataset by bucket: from upstream's own record of an earlier start, the rest from their headers."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from PIL import Image

from ..backends.ram.listing import list_dataset
from ..errors import GH200Error
from ..image_headers import header
from .buckets import Rules, rules_of
from .keys import number

MOST_UNKNOWN = 10_000
_RECORD = "aspect_ratio_bucket_indices"


@dataclass(frozen=True)
class Samples:
    """`buckets` has images by bucket, without repeats; `unchecked` says why there are none.

    `namesakes` differ from another image's name in the suffix only.
    """

    id: str
    index: int
    repeats: int
    batch_size: int | None = None
    buckets: Mapping[str, int] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    unchecked: str = ""
    namesakes: tuple[str, ...] = ()

    @property
    def per_epoch(self) -> int:
        """Samples of one epoch, repeats included."""
        return sum(self.buckets.values()) * (self.repeats + 1)


def image_suffixes() -> frozenset[str]:
    """What upstream takes for an image: whatever Pillow opens."""
    Image.init()
    return frozenset(suffix.lower() for suffix, kind in Image.registered_extensions().items() if kind in Image.OPEN)


def samples_of(entry: Mapping[str, Any], index: int, config: Mapping[str, Any]) -> Samples | None:
    """None for what is no set of training images; upstream has other ways to bucket those."""
    if (entry.get("dataset_type") or "image") != "image" or entry.get("type", "local") not in ("local", "in_memory"):
        return None
    size = number(entry.get("train_batch_size"))
    found = Samples(
        str(entry.get("id", "")), index, int(number(entry.get("repeats")) or 0), int(size) if size else None
    )
    rules = rules_of(entry, config)
    if rules is None or rules.unknown:
        return replace(found, unchecked=rules.unknown if rules else "the resolution is no number")
    if str(entry.get("metadata_backend") or "discovery") not in ("discovery", "json"):
        return replace(found, unchecked=f"metadata_backend {entry['metadata_backend']} has its own record")
    directory = str(entry.get("instance_data_dir") or "")
    if not os.path.isdir(directory):
        return replace(found, unchecked="the directory is not there")
    try:
        listing = list_dataset(directory)
    except GH200Error as error:
        return replace(found, unchecked=error.what)
    suffixes = image_suffixes()
    paths = {path for path, _ in listing.names if os.path.splitext(path)[1].lower() in suffixes}
    return _counted(found, directory, paths, rules, str(entry.get("cache_file_suffix") or found.id))


def _counted(samples: Samples, directory: str, paths: set[str], rules: Rules, suffix: str) -> Samples:
    top = os.path.abspath(directory)
    stems = Counter(os.path.splitext(path)[0] for path in paths)
    namesakes = tuple(sorted(os.path.relpath(path, top) for path in paths if stems[os.path.splitext(path)[0]] > 1))
    counts: Counter[str] = Counter()
    for bucket, kept in _record(record_path(directory, suffix)).items():
        there = {os.path.abspath(path) for path in kept} & paths
        counts[bucket] += len(there)
        paths = paths - there
    if len(paths) > MOST_UNKNOWN:
        return replace(samples, unchecked=f"{len(paths):,} images have not been seen by upstream yet")
    left_out: dict[str, str] = {}
    for path in sorted(paths):
        found = header(path)
        if found.size is None or rules.too_small(found.size):
            left_out[os.path.relpath(path, top)] = found.problem or "is smaller than minimum_image_size"
        elif rules.kept(bucket := rules.bucket(found.size)):
            counts[bucket] += 1
        else:
            left_out[os.path.relpath(path, top)] = f"has the aspect ratio {bucket}, outside the limits"
    buckets = {bucket: count for bucket, count in sorted(counts.items()) if count}
    return replace(samples, buckets=buckets, left_out=left_out, namesakes=namesakes)


def record_path(directory: str | os.PathLike[str], suffix: str) -> str:
    """Where upstream keeps the buckets of a dataset, and with them what its config was."""
    return os.path.join(directory, f"{_RECORD}_{suffix}.json")


def _record(path: str) -> Mapping[str, list[str]]:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        return {str(bucket): [str(name) for name in names] for bucket, names in found.get(_RECORD, {}).items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
