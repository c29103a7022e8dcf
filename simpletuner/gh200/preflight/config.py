"""Facts about a training config: what its datasets, caches, codecs and ramp would take on this machine."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..backends.ram.codecs import Codec, load_codec
from ..backends.ram.listing import list_dataset
from ..backends.ram.segment import bytes_for_all, estimated_bytes
from ..config.keys import AUTO, DATASETS_FILE_KEY
from ..config.profile import staged_by_profile
from ..errors import GH200Error
from ..memory.limits import GB
from .keys import number
from .settings_check import UNJUDGED, judge_config, judge_ramp, staging_options

if TYPE_CHECKING:
    from ..config.schema import CodecName, Settings

_IMAGES = frozenset({".png", ".jpg", ".jpeg", ".webp"})
# A latent of 16 channels at an eighth of the edge, in bf16, takes half a byte for every pixel.
_LATENT_BYTES_PER_PIXEL = 0.5
_FRAMES_PER_LATENT = 4


@dataclass(frozen=True)
class Dataset:
    """One dataset with a directory; the sizes are what staging would count, 0 for one that is not staged."""

    id: str
    folder: str
    in_memory: bool
    problem: str = ""
    files: int = 0
    file_bytes: int = 0
    need_bytes: int = 0
    estimated_bytes: int = 0
    latent_bytes: int = 0
    memory_limit_bytes: int | None = None
    on_limit: str = "error"
    compression: str | None = None
    codec_problem: str = ""


@dataclass(frozen=True)
class Caches:
    """The unified-memory caches a config asks for."""

    kinds: tuple[str, ...]
    latent_bytes: int
    memory_limit_bytes: int | None
    ratio: float


@dataclass(frozen=True)
class Config:
    """None where it is not known; `unjudged` says why."""

    path: str
    unjudged: str
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    missing: tuple[str, ...]
    datasets: tuple[Dataset, ...]
    caches: Caches | None
    ramp: str | None
    ramp_notes: tuple[str, ...]
    ramp_problem: str
    processes: int


def read_config(path: Path, config: Mapping[str, Any], processes: int, environ: Mapping[str, str]) -> Config:
    """`config` is the file as a run gets it (`config.blocks.loaded_config`)."""
    entries, missing = dataset_entries(config)
    settings, problems = judge_config(config, environ)
    if settings is not None and settings.optimizations.profile == AUTO:
        entries = staged_by_profile(entries)
    datasets = tuple(_dataset(entry) for entry in entries if entry.get("instance_data_dir"))
    ramp, ramp_problem = judge_ramp(settings, config, processes)
    return Config(
        path=str(path),
        unjudged=UNJUDGED,
        problems=problems,
        notes=settings.notes if settings else (),
        missing=(*missing, *(item.problem for item in datasets if item.problem), *_output_problem(config)),
        datasets=datasets,
        caches=_caches(settings, datasets) if settings else None,
        ramp=ramp.describe() if ramp else None,
        ramp_notes=ramp.notes if ramp else (),
        ramp_problem=ramp_problem,
        processes=processes,
    )


def staging_problems(staged: list[Dataset], available: int) -> tuple[list[str], bool]:
    """What does not fit into RAM, and whether `on_limit` accepts a part."""
    wrong, partial = [], False
    for item in staged:
        limit = item.memory_limit_bytes
        if limit is not None and item.estimated_bytes > limit and item.on_limit != "disk":
            wrong.append(f'"{item.id}" needs about {gb(item.estimated_bytes)}, its memory_limit_gb allows {gb(limit)}')
            partial = partial or item.on_limit == "partial"
    need = sum(item.estimated_bytes for item in staged if item.on_limit != "disk")
    if need > available:
        wrong.append(
            f"together they need about {gb(need)}, the machine can give {gb(available)} (MemAvailable and cgroup)"
        )
        partial = partial or all(item.on_limit == "partial" for item in staged)
    return wrong, partial and len(wrong) == 1


def gb(size: int | None) -> str:
    """GB are 10^9 bytes, as on the labels of memory and in the settings."""
    if size is None:
        return "unknown"
    return f"{size / 1e9:.1f} GB" if size >= 10**9 else f"{size / 1e6:.1f} MB"


def dataset_entries(config: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], list[str]]:
    """The datasets in use, wherever they are written, and what is missing; what is no block of keys is the settings' business."""
    found, missing = config.get("datasets"), []
    older, file = config.get("data_backend"), config.get(DATASETS_FILE_KEY)
    if found is None and isinstance(older, Mapping):
        found = [{"id": Path(str(older.get("instance_data_dir", ""))).name, **older}]
    elif found is None and isinstance(file, str):
        try:
            found = json.loads(Path(file).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            missing.append(f"{DATASETS_FILE_KEY} {file} cannot be used: {getattr(error, 'strerror', None) or error}")
    elif found is None:
        missing.append(f"the config names no dataset: neither datasets nor {DATASETS_FILE_KEY}")
    listed = found if isinstance(found, list) else []
    entries = [entry for entry in listed if isinstance(entry, Mapping)]
    return [entry for entry in entries if not (entry.get("disabled") or entry.get("disable"))], missing


def _dataset(entry: Mapping[str, Any]) -> Dataset:
    name, directory = str(entry.get("id", "")), str(entry["instance_data_dir"])
    in_memory = entry.get("type") == "in_memory"
    if entry.get("type", "local") not in ("local", "in_memory"):
        return Dataset(name, directory, False)
    known, codec = Dataset(name, directory, in_memory), None
    options = staging_options(entry.get("in_memory"))
    if options is not None:
        codec, codec_problem = _codec(options.compression)
        limit = options.memory_limit_gb
        known = replace(
            known,
            memory_limit_bytes=None if limit is None else int(limit * GB),
            on_limit=options.on_limit,
            compression=options.compression,
            codec_problem=codec_problem,
        )
    if not os.path.isdir(directory):
        there = "is not a directory" if os.path.exists(directory) else "does not exist"
        return replace(known, problem=f'dataset directory {directory} of "{name}" {there}')
    try:
        listing = list_dataset(directory)
    except GH200Error as error:
        return replace(known, problem=f'dataset directory {directory} of "{name}" cannot be read: {error.why}')
    need = bytes_for_all(listing.files) if in_memory else 0
    return replace(
        known,
        problem="" if listing.files else f'dataset directory {directory} of "{name}" holds no files',
        files=len(listing.files),
        file_bytes=listing.bytes,
        need_bytes=need,
        estimated_bytes=estimated_bytes(listing.files, codec) if in_memory and codec else need,
        # Rough, and only for images: every image at the dataset's resolution.
        latent_bytes=sum(os.path.splitext(name)[1].lower() in _IMAGES for name, _ in listing.names)
        * latent_bytes(entry, {}),
    )


def _codec(name: CodecName | None) -> tuple[Codec | None, str]:
    try:
        return load_codec(name), ""
    except GH200Error as error:
        return None, error.what


def _caches(settings: Settings, datasets: tuple[Dataset, ...]) -> Caches | None:
    kinds = tuple(kind for kind in ("vae", "text") if settings.uses_unified_memory(kind))
    if not kinds:
        return None
    limit = settings.caches.memory_limit_gb
    latents = sum(item.latent_bytes for item in datasets) if "vae" in kinds else 0
    ratio = settings.optimizations.uvm_oversubscription_ratio
    return Caches(kinds, latents, None if limit is None else int(limit * GB), ratio)


def _output_problem(config: Mapping[str, Any]) -> list[str]:
    if not config.get("output_dir"):
        return []
    directory = existing_part(str(config["output_dir"]))
    writable = directory.is_dir() and os.access(directory, os.W_OK | os.X_OK)
    return [] if writable else [f"output_dir {config['output_dir']} cannot be written"]


def existing_part(directory: str) -> Path:
    """The nearest existing directory at or above one that may still have to be made."""
    place = Path(directory).expanduser().absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


def latent_bytes(entry: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    """About one latent of a dataset, whose defaults are the config's; 0 where it is not known."""
    edge = number(entry.get("resolution", config.get("resolution") or 1024))
    if edge is None or not math.isfinite(edge):
        return 0
    kind = entry.get("resolution_type") or config.get("resolution_type")
    pixels = edge * 1e6 if kind == "area" else edge * edge
    video = entry.get("video")
    frames = number(video.get("num_frames")) if isinstance(video, Mapping) else None
    return int(pixels * _LATENT_BYTES_PER_PIXEL) * max(1, int(frames or 1) // _FRAMES_PER_LATENT)


def latent_batch(entries: Iterable[object], config: Mapping[str, Any]) -> tuple[int, int]:
    """About the bytes of the largest batch of latents, and how many are in it."""
    usual = int(number(config.get("train_batch_size")) or 1)
    known = [entry for entry in entries if isinstance(entry, Mapping) and entry.get("dataset_type") != "text_embeds"]
    sizes = [(int(number(entry.get("train_batch_size")) or usual), latent_bytes(entry, config)) for entry in known]
    count, size = max(sizes, key=lambda each: each[0] * each[1], default=(usual, 0))
    return count * (size or latent_bytes({}, {})), count
