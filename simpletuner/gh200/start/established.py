"""The certificate: what the last start established about a dataset's text embeddings; nothing changed means nothing is read.

It says that every caption had its embedding on disk, and holds digests of all that this followed from: the pictures, the caption
files' times, the listing of the embeddings, the metadata, and how upstream turns a caption into a name. It is a claim about
files that lie there still; deleting it costs time only.
"""

from __future__ import annotations

import os
from array import array
from hashlib import sha256
from pathlib import Path
from typing import Any

from simpletuner.helpers.training.state_tracker import StateTracker

from ..run import current
from .captions import AllRead, caption_place
from .held import digest_of_listing, unread
from .native import caption_stats
from .record import all_settled, clock_of, load, record_beside, save, stats_of

# Read from a dataset's entry or the arguments by upstream's loop over the captions.
_ASKED = (
    *("caption_strategy", "prepend_instance_prompt", "instance_prompt", "only_instance_prompt"),
    *("disable_multiline_split", "caption_shuffle", "caption_dropout_probability"),
    *("distillation_method", "instance_data_dir"),
)
_STRATEGIES = ("textfile", "filename", "instanceprompt")
# With this a model names each embedding itself.
_OWN_NAMES = "text_embed_cache_key_value"
_OWN_CONTEXT = (
    *("requires_text_embed_image_context", "uses_image_context_dropout_caption_cache"),
    "prompt_upsampling_enabled",
)


def established(factory: Any, backend: dict[str, Any], made: dict[str, Any]) -> bool:
    """Whether upstream would find every embedding of this dataset in place, as the last start did."""
    if not _plain(factory, backend, made):
        return False
    file = _file(made)
    known = load(file, _key(factory, backend, made))
    return known is not None and known == _seen(backend, made, clock=None)


def establish(factory: Any, backend: dict[str, Any], made: dict[str, Any]) -> None:
    """After upstream has gone through all captions: if none lacks its embedding, the next start need not."""
    text = made["text_embed_cache"]
    if not _plain(factory, backend, made) or not getattr(factory.accelerator, "is_local_main_process", True):
        return
    listed = StateTracker.get_text_cache_files(data_backend_id=text.id) or {}
    records = text.prompt_records
    # A dataset without a single caption leaves another's here.
    if not any(record["metadata"].get("data_backend_id") == made["id"] for record in records):
        return
    if not all(text.hash_prompt_with_path(record) in listed for record in records):
        return
    clock = _clock(backend, made)
    seen = _seen(backend, made, clock) if clock is not None else None
    if seen is not None:
        save(_file(made), _key(factory, backend, made), seen)


def _clock(backend: dict[str, Any], made: dict[str, Any]) -> int | None:
    """Before the first caption was read: what is younger may have been edited after that. None if one could not be read."""
    run = current()
    if run is None or _strategy(backend, made) != "textfile":
        return clock_of(_file(made).parent)
    return run.part(AllRead).pop(made["id"], None)


def _plain(factory: Any, backend: dict[str, Any], made: dict[str, Any]) -> bool:
    """A local dataset, all of it, whose captions alone name their embeddings."""
    model, text, data = factory.model, made["text_embed_cache"], made["data_backend"]
    asks = [getattr(model, name, None) for name in _OWN_CONTEXT]
    return (
        data.type == "local"
        and not hasattr(data, "view")
        and _strategy(backend, made) in _STRATEGIES
        and not getattr(made["metadata_backend"], "max_num_samples", None)
        and not made["config"].get("max_num_samples")
        # Going through the captions has the text encoders moved to the GPU then.
        and not getattr(factory.args, "offload_during_startup", False)
        and text.data_backend.type == "local"
        and not getattr(text, "_requires_path_based_keys", True)
        and not callable(getattr(model, _OWN_NAMES, None))
        and not any(ask() for ask in asks if callable(ask))
        and type(made["metadata_backend"]).__name__ == "DiscoveryMetadataBackend"
    )


def _file(made: dict[str, Any]) -> Path:
    return record_beside(made["metadata_backend"].cache_file, "established", str(made["text_embed_cache"].cache_dir))


def _key(factory: Any, backend: dict[str, Any], made: dict[str, Any]) -> object:
    text, arguments = made["text_embed_cache"], factory.args
    namespace = getattr(factory.model, "text_embed_cache_namespace", None)
    asked = [repr(backend.get(name, getattr(arguments, name, None))) for name in _ASKED]
    model = type(factory.model).__qualname__, text.model_type, namespace() if callable(namespace) else None
    return made["id"], text.id, str(text.cache_dir), os.getcwd(), model, asked


def _seen(backend: dict[str, Any], made: dict[str, Any], clock: int | None) -> list[bytes] | None:
    """None where something is missing, or too young for its times to mean anything (asked only when it is to be kept)."""
    images = StateTracker.get_image_files(data_backend_id=made["id"])
    listed = StateTracker.get_text_cache_files(data_backend_id=made["text_embed_cache"].id)
    if not images or not listed:
        return None
    try:
        stats = stats_of([os.path.split(made["metadata_backend"].metadata_file)])
        if _strategy(backend, made) == "textfile":
            stats += _caption_stats(images)
    except OSError:
        return None
    if clock is not None and not all_settled(stats, clock):
        return None
    return [digest_of_listing(images), digest_of_listing(listed), sha256(stats).digest()]


def _caption_stats(images: Any) -> array[int]:
    paths = unread(images)
    at_once = caption_stats(paths) if paths is not None else None
    return stats_of(map(caption_place, paths or map(str, images))) if at_once is None else at_once


def _strategy(backend: dict[str, Any], made: dict[str, Any]) -> Any:
    return made["config"].get("caption_strategy") or backend.get("caption_strategy")
