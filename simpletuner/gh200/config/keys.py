"""The names of the config keys the fork adds, and how a key is recognised however a loader writes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import get_close_matches

# Kept apart from the models so that the loaders' hooks do not import pydantic; a test compares both.
BLOCK_KEYS = frozenset(
    {
        "cache_config",
        "gh200_optimizations",
        "datasets",
        "use_gh200_trainer",
        "initial_effective_batch_size",
        "data_backend",
    }
)
# Editors read it; neither upstream nor the fork does.
SCHEMA_KEY = "$schema"
DATASETS_FILE_KEY = "data_backend_config"
AUTO = "auto"
INLINE_KEYS = ("datasets", "data_backend")
# The type of a dataset that is staged in RAM, and its block.
IN_MEMORY = "in_memory"
# A key of the two blocks may also be written flat, as `gh200_KEY`: these are of cache_config, all others of the other one.
FLAT_PREFIX = "gh200_"
CACHE_KEYS = frozenset(
    {
        "vae_cache_type",
        "text_cache_type",
        "cache_dir",
        "persistent_cache",
        "memory_limit_gb",
        "placement",
        "prefetch",
        "preload",
        "adaptive_prefetch",
    }
)


def plain_key(key: object) -> str:
    """`--name` and `name` are the same key: the web UI and the command line write the first."""
    return str(key).strip().lstrip("-")


def is_ours(key: object, value: object) -> bool:
    """Whether a config key belongs to the fork, or is a misspelt block of it that upstream would drop in silence."""
    name = plain_key(key)
    if name == "data_backend":
        # Upstream accepts `--data_backend FILE` as a short form of its own data_backend_config.
        return not isinstance(value, str) or looks_like_json(value)
    return is_our_name(name) or is_misspelt_block(name, value)


def is_our_name(name: str) -> bool:
    """Whether a plain name is one of our blocks or the flat spelling of a key in them."""
    return name in BLOCK_KEYS or name.startswith(FLAT_PREFIX)


def flat_place(name: str, value: object) -> tuple[str, str] | None:
    """The block and the key that a flat name stands for; None for every other name."""
    if not name.startswith(FLAT_PREFIX) or name in BLOCK_KEYS or is_misspelt_block(name, value):
        return None
    key = name.removeprefix(FLAT_PREFIX)
    return ("cache_config" if key in CACHE_KEYS else "gh200_optimizations"), key


def is_misspelt_block(name: str, value: object) -> bool:
    """A nested value under nearly one of our names; upstream has no nested key that comes this close."""
    nested = isinstance(value, Mapping) or (
        isinstance(value, list) and any(isinstance(item, Mapping) for item in value)
    )
    if not nested or name in BLOCK_KEYS or name == DATASETS_FILE_KEY:
        return False
    return name.startswith("gh200") or bool(get_close_matches(name, BLOCK_KEYS, n=1, cutoff=0.85))


def looks_like_json(text: str) -> bool:
    """Whether a text starts a JSON object or list, perhaps inside quotes of a shell."""
    return text.strip().strip("'\"")[:1] in {"{", "["}


def decoded(text: str) -> object:
    """A command-line value as the JSON it holds; text that is none stays text, and validation names the key."""
    unquoted = text.strip().strip("'\"")
    for candidate in (text, unquoted):
        try:
            return json.loads(candidate)
        except (ValueError, RecursionError):
            continue
    return unquoted if unquoted == AUTO else text


def unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """For `json.loads`, which keeps the last of two equal keys: one of the operator's two lines would be lost."""
    mapping: dict[str, object] = {}
    for key, value in pairs:
        if key in mapping:
            raise ValueError(f'the key "{key}" is given twice')
        mapping[key] = value
    return mapping
