"""Where the caches' files go: `cache_config.cache_dir` as the default parent, or a directory of this run only."""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

from ...overrides import Overrides, override
from ...runtime import Run, current
from ...state import StateHooks

logger = logging.getLogger("gh200.cache")

# dataset_type -> the key that names its cache directory, the kind of cache, and the directory below the parent
_VAE = ("cache_dir_vae", "vae")
DIRECTORY_KEYS: dict[str, tuple[str, str]] = {
    "image": _VAE,
    "video": _VAE,
    "audio": _VAE,
    "conditioning": _VAE,
    "eval": _VAE,
    "text_embeds": ("cache_dir", "text"),
    "conditioning_image_embeds": ("cache_dir", "image_embed"),
    "distillation_cache": ("cache_dir", "distillation"),
}
_EMBEDS_OF = "cache_dir_conditioning_image_embeds"
LOCAL_TYPES = frozenset({"local", "in_memory"})
PRIVATE = "gh200-run-"


class PrivateDirectory:
    """The directory of one run, the same on every rank; removed when the run ends."""

    def __init__(self, run: Run) -> None:
        parent = run.options.cache_dir
        self._made_by: int | None = None
        self.path = Path(self._from_first_rank(parent))
        run.at_end(self._remove)
        logger.info(
            "GH200 caches: persistent_cache is false: cache files go to %s and are removed at the end", self.path
        )

    def _from_first_rank(self, parent: str | None) -> str:
        dist = sys.modules.get("torch.distributed")  # not loaded: then there are no other ranks
        if dist is None or not (dist.is_available() and dist.is_initialized()):
            return self._make(parent)
        chosen = [self._make(parent) if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(chosen, src=0)
        assert chosen[0] is not None
        return chosen[0]

    def _make(self, parent: str | None) -> str:
        base = Path(parent).absolute() if parent else Path(tempfile.gettempdir())
        base.mkdir(parents=True, exist_ok=True)
        mark = f"{PRIVATE}{socket.gethostname()}-"
        # The whole name: `node-2` begins as `node` does, and its processes are not ours to know.
        name = re.compile(rf"{re.escape(mark)}(\d+)-\w+")
        for left_over in base.iterdir():
            owner = name.fullmatch(left_over.name)
            if owner is not None and not Path("/proc", owner[1]).exists():
                logger.info("GH200 caches: removing %s, left by a run that was killed", left_over)
                shutil.rmtree(left_over, ignore_errors=True)
        self._made_by = os.getpid()
        return tempfile.mkdtemp(prefix=f"{mark}{os.getpid()}-", dir=base)

    def _remove(self) -> None:
        if self._made_by == os.getpid():
            shutil.rmtree(self.path, ignore_errors=True)
            logger.info("GH200 caches: removed %s", self.path)


# Keys of the training config that name a directory for a whole kind of cache.
_CONFIG_KEYS = {"cache_dir_vae": "vae", "cache_dir_text": "text"}


class CacheDirectories(Overrides):
    """On upstream's factory: the datasets it has added by itself are all there, and none of their directories is used yet.

    The model family is part of the path, as in upstream's own default: latents of one model are wrong for another.
    """

    upstream_class, feature = "FactoryRegistry", "cache_config.cache_dir"

    def __init__(self, run: Run, model_family: str, entries: list[dict[str, Any]]) -> None:
        super().__init__()
        options = run.options
        self._options, self._model_family = options, model_family
        own = options.cache_dir if options.persistent else None
        self._parent = Path(own) if own else run.part(PrivateDirectory).path
        self._given = frozenset(str(entry.get("id")) for entry in entries)
        raw = StateHooks.get_raw_config()
        self._set_in_the_config = frozenset(kind for key, kind in _CONFIG_KEYS.items() if raw.get(key))

    @override
    def _ensure_text_embed_backends_present(self, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The entries upstream has added obey `cache_dir` too: the directory it gives them is nobody's wish.

        In place, because upstream goes on with its own list.
        """
        entries = self.upstream._ensure_text_embed_backends_present(entries)
        for entry in entries:
            key, kind = DIRECTORY_KEYS.get(str(entry.get("dataset_type", "image")), ("", ""))
            old = entry.get(key)
            if str(entry.get("id")) in self._given or not old or kind in self._set_in_the_config:
                continue
            if Path(old).absolute().is_relative_to(self._parent.absolute()):
                continue
            new = self.with_directory(entry | {key: None}).get(key)
            if new:
                logger.info("GH200 caches: dataset %s, made by upstream, has its cache in %s", entry["id"], new)
                entry[key] = new
                _follow(entries, old, new)
        return entries

    def with_directory(self, entry: dict[str, Any]) -> dict[str, Any]:
        """With a cache directory where it names none; a kind whose directory the config sets stays as it is."""
        key, kind = DIRECTORY_KEYS.get(entry.get("dataset_type", "image"), ("", ""))
        if kind not in self._options.kinds:
            return entry
        name = entry.get("id", "")
        in_config = f"the {kind} directory of the training config" if kind in self._set_in_the_config else None
        own = entry.get(key) or in_config
        if own or entry.get("type", "local") not in LOCAL_TYPES:
            left = f"{key} is {own}" if own else f"its type is {entry.get('type')}"
            kept = "" if self._options.persistent else "; its files stay after the run"
            logger.info("GH200 caches: dataset %s keeps its own cache directory (%s)%s", name, left, kept)
            return entry
        return entry | {key: str(self._parent / kind / self._model_family / name)}


def _follow(entries: list[dict[str, Any]], old: str, new: str) -> None:
    """A dataset of videos names the directory of the image embeddings that upstream makes for it."""
    for entry in entries:
        if entry.get(_EMBEDS_OF) == old:
            entry[_EMBEDS_OF] = new


def directories_for_run(entries: list[dict[str, Any]], factory: Any) -> list[dict[str, Any]]:
    """The dataset entries of the operator's list with their cache directories; those the factory adds get theirs later."""
    run = current()
    if run is None or not run.options.kinds or (run.options.persistent and run.options.cache_dir is None):
        return entries
    directories = CacheDirectories(run, str(factory.args.model_family), entries)
    directories.install(factory)
    return [directories.with_directory(entry) for entry in entries]
