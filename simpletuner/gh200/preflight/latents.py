"""About how large latents are, before anything is loaded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from .keys import number

# A latent of 16 channels at an eighth of the edge, in bf16, takes half a byte for every pixel.
_LATENT_BYTES_PER_PIXEL = 0.5
_FRAMES_PER_LATENT = 4


def latent_bytes(entry: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    """About one latent of a dataset, whose config stands in for what the entry leaves out; 0 where it cannot be told."""
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
