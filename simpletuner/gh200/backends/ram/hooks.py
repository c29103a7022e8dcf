"""What upstream calls for in-memory datasets: when one is configured or built, and twice in a run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...config.dataset_file import DatasetReader
from ...config.keys import IN_MEMORY
from ...config.problems import SettingsError
from ...config.profile import staged_by_profile
from .registry import staged, staged_for_use

logger = logging.getLogger("gh200.in_memory")


def local_entries(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Presents in-memory datasets as local ones, as upstream compares types in thirty places; keeps their options."""
    if (known := staged()) is not None:
        known.forget()
    if not isinstance(entries, list):
        return entries
    if known is not None and known.profile:
        entries = staged_by_profile(entries)
    reader = DatasetReader({}, list(entries))
    if reader.problems:
        raise SettingsError(reader.problems)
    changed = []
    for entry in entries:
        if isinstance(entry, Mapping) and entry.get("type") == IN_MEMORY:
            name = str(entry.get("id", ""))
            staged_for_use().register(name, reader.in_memory[name], dict(entry))
            entry = {key: value for key, value in entry.items() if key != IN_MEMORY} | {"type": "local"}
        changed.append(entry)
    return changed


def is_in_memory(config: Any) -> bool:
    """Whether the local dataset upstream is about to build was configured as in-memory."""
    known = staged()
    return known is not None and str(config.id) in known.options


def epoch_started() -> None:
    """Looks for files that were changed behind the run's back."""
    known = staged()
    for backend in known.live() if known else ():
        backend.check_files()


def _either(key: str) -> Callable[[Mapping[str, Any], Mapping[str, Any]], object]:
    return lambda entry, args: entry.get(key) or args.get(key)


def _of_type(name: str) -> Callable[[Mapping[str, Any], Mapping[str, Any]], object]:
    return lambda entry, args: entry.get("dataset_type") == name


# What makes upstream read source files again once its caches are built.
_STILL_READ: Sequence[tuple[str, Callable[[Mapping[str, Any], Mapping[str, Any]], object]]] = (
    ("latents are encoded during training (vae_cache_ondemand)", _either("vae_cache_ondemand")),
    ("latents are not kept (vae_cache_disable)", _either("vae_cache_disable")),
    ("the VAE cache is built again every epoch (vae_cache_clear_each_epoch)", _either("vae_cache_clear_each_epoch")),
    ("conditioning samples are loaded with each batch", _of_type("conditioning")),
    ("captions are the samples", _of_type("caption")),
    ("evaluation samples are loaded when they are used", _of_type("eval")),
    ("validation takes its input from the datasets", lambda entry, args: args.get("validation_using_datasets")),
)


def caches_built(args: Any) -> None:
    """Says what is still read from each dataset in RAM, and frees those that asked for it and are not read any more."""
    given = args if isinstance(args, Mapping) else vars(args)
    known = staged()
    for backend in known.live() if known else ():
        entry = known.entries.get(str(backend.id), {}) if known else {}
        reasons = [reason for reason, holds in _STILL_READ if holds(entry, given)]
        if reasons:
            logger.info("(id=%s) Stays in RAM, its files are still read: %s.", backend.id, "; ".join(reasons))
        elif backend.options.release_after_cache:
            backend.release()
            logger.info("(id=%s) The caches are built: RAM released. Captions in files now come from disk.", backend.id)
        else:
            logger.info(
                "(id=%s) The caches are built: only captions in files are still read. "
                "in_memory.release_after_cache would free the RAM.",
                backend.id,
            )
