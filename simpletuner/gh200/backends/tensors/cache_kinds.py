"""The caches upstream has registered for its datasets, and what kind of cache a data backend serves."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any, Final, Literal

from .arena import Consumer

CacheKind = Literal["vae", "text", "image_embed", "distillation"]
# Collate moves latents to the GPU one by one; everything else is first put together on the CPU.
CONSUMERS: Final[dict[CacheKind, Consumer]] = {
    "vae": "device", "text": "host", "image_embed": "host", "distillation": "host",
}  # fmt: skip
# dataset_type -> kind; every other dataset has latents, if it has a cache at all
_KINDS: Final[dict[str, CacheKind]] = {
    "text_embeds": "text",
    "conditioning_image_embeds": "image_embed",
    "distillation_cache": "distillation",
}
# The key of a registered dataset -> kind, and the attribute of the cache that has its data backend
_CACHES: Final[dict[str, tuple[CacheKind, str]]] = {
    "vaecache": ("vae", "cache_data_backend"),
    "text_embed_cache": ("text", "data_backend"),
    "conditioning_image_embed_cache": ("image_embed", "cache_data_backend"),
    "distillation_cache": ("distillation", "data_backend"),
}


def kind_of_dataset(dataset_type: str) -> CacheKind:
    """Which cache the backend of such a dataset serves."""
    return _KINDS.get(dataset_type, "vae")


def registered_caches() -> Iterator[tuple[CacheKind, Any, Any]]:
    """Each with its kind and its data backend; upstream registers a dataset before it builds its caches."""
    module = sys.modules.get("simpletuner.helpers.training.state_tracker")
    for dataset in module.StateTracker.data_backends.copy().values() if module is not None else ():
        for key, (kind, attribute) in _CACHES.items():
            cache = dataset.get(key)
            if cache is not None:
                yield kind, cache, getattr(cache, attribute, None)


def consumer_of(kind: CacheKind, path: str) -> Consumer:
    """Of an entry: without a dataset of their own, image embeddings are in a backend of latents, in another directory."""
    if kind != "vae":
        return CONSUMERS[kind]
    for other, cache, _ in registered_caches():
        directory = getattr(cache, "cache_dir", None) if other == "image_embed" else None
        if directory and path.startswith(os.path.abspath(directory) + os.sep):
            return CONSUMERS["image_embed"]
    return CONSUMERS["vae"]
