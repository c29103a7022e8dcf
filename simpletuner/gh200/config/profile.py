"""The profile "auto": a value and a reason for every key that neither the config nor the environment gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from .keys import IN_MEMORY

# How an origin starts that is a choice of the profile's; the reason follows.
CHOSEN = "auto: "
CHOICES: Mapping[str, tuple[object, str]] = {
    "cache_config.vae_cache_type": ("unified_memory", "every step reads latents"),
    "cache_config.text_cache_type": ("unified_memory", "every step reads text embeddings"),
    "cache_config.placement": ("auto", "measured at each start, on the GPU that trains"),
    "gh200_optimizations.telemetry_interval": (10, "memory and time by step, for watch and for estimates"),
    "gh200_optimizations.preflight": (True, "a config that cannot work stops before anything is loaded"),
    "gh200_optimizations.checkpoint_on_signal": (True, "a preempted run resumes where it was"),
    "gh200_optimizations.enable_batch_size_rampup": (False, "never chosen, a ramp changes the training"),
}
_STAGED_TYPES = ("image", "audio", "video")


def staged_by_profile(entries: list[Any]) -> list[Any]:
    """Datasets of local files become in-memory ones, which fall back to the disk where they are too large."""
    ids = Counter(str(entry.get("id")) for entry in entries if isinstance(entry, Mapping))
    staged = {"type": IN_MEMORY, IN_MEMORY: {"on_limit": "disk"}}
    known = (isinstance(entry, Mapping) and _may_be_staged(entry, ids) for entry in entries)
    return [{**entry, **staged} if chosen else entry for entry, chosen in zip(entries, known, strict=True)]


def _may_be_staged(entry: Mapping[str, Any], ids: Counter[str]) -> bool:
    local = entry.get("type", "local") == "local" and entry.get(IN_MEMORY) is None
    known = bool(entry.get("instance_data_dir")) and ids[str(entry.get("id"))] == 1
    return local and known and (entry.get("dataset_type") or "image") in _STAGED_TYPES and bool(entry.get("id"))
