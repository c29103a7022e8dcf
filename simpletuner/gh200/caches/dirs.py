"""Where the caches' files go: `cache_config.cache_dir` as the default parent, or a folder of this run only."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

from ..run import Run, current
from ..stand_in import StandIn, instead
from ..state import StateHooks

logger = logging.getLogger("gh200.cache")

# dataset_type -> the key that names its cache folder, the kind of cache, and the folder below the parent
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


def owner_of(private: Path) -> int | None:
    """The process that made a private folder, by its name."""
    owner = private.name.rpartition("-")[0].rpartition("-")[2]
    return int(owner) if owner.isdigit() else None


class PrivateFolder:
    """The folder of one run, the same on every rank; removed when the run ends."""

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
        for left_over in base.glob(f"{mark}*"):
            owner = owner_of(left_over)
            # `node-2` begins as `node` does, and its processes are not ours to know.
            if (
                left_over.name.rsplit("-", 2)[0] + "-" == mark
                and owner is not None
                and not Path("/proc", str(owner)).exists()
            ):
                logger.info("GH200 caches: removing %s, left by a run that was killed", left_over)
                shutil.rmtree(left_over, ignore_errors=True)
        self._made_by = os.getpid()
        return tempfile.mkdtemp(prefix=f"{mark}{os.getpid()}-", dir=base)

    def _remove(self) -> None:
        if self._made_by == os.getpid():
            shutil.rmtree(self.path, ignore_errors=True)
            logger.info("GH200 caches: removed %s", self.path)


# Keys of the training config that name a folder for a whole kind of cache.
_CONFIG_KEYS = {"cache_dir_vae": "vae", "cache_dir_text": "text"}


class GivenDatasets:
    """The names in the operator's list: whatever else a run has, upstream made."""

    def __init__(self, run: Run) -> None:
        self.names: frozenset[str] = frozenset()


class MadeDatasets(StandIn):
    """On upstream's factory: the datasets it has added by itself are all there, and none of their folders is used yet."""

    upstream_class, feature = "FactoryRegistry", "cache_config.cache_dir"

    def __init__(self, args: Any) -> None:
        super().__init__()
        self._args = args

    @instead
    def _ensure_text_embed_backends_present(self, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return directories_of_made(self.upstream._ensure_text_embed_backends_present(entries), self._args)


def directories_for_run(entries: list[dict[str, Any]], factory: Any) -> list[dict[str, Any]]:
    """As below, with what the training config itself says; for what upstream's factory adds too."""
    run, args = current(), factory.args
    if run is not None:
        run.part(GivenDatasets).names = frozenset(str(entry.get("id")) for entry in entries if isinstance(entry, dict))
        if _moves(run):
            MadeDatasets(args).take_over(factory)
    return with_cache_directories(
        entries, model_family=str(args.model_family), kinds_set_elsewhere=_set_in_the_config()
    )


def directories_of_made(entries: list[dict[str, Any]], args: Any) -> list[dict[str, Any]]:
    """The entries upstream has added obey `cache_dir` too: the folder it gives them is nobody's wish.

    In place, because upstream goes on with its own list.
    """
    run = current()
    if run is None or not _moves(run):
        return entries
    given, elsewhere = run.part(GivenDatasets).names, _set_in_the_config()
    for entry in entries:
        key, kind = DIRECTORY_KEYS.get(str(entry.get("dataset_type", "image")), ("", ""))
        old = entry.get(key)
        if str(entry.get("id")) in given or not old or kind in elsewhere or _below(old, _parent(run)):
            continue
        moved = _with_directory(entry | {key: None}, run, str(args.model_family), frozenset())
        if moved.get(key):
            logger.info("GH200 caches: dataset %s, made by upstream, has its cache in %s", entry["id"], moved[key])
            entry[key] = moved[key]
            _follow(entries, old, moved[key])
    return entries


def _below(folder: str, parent: Path) -> bool:
    return Path(folder).absolute().is_relative_to(parent.absolute())


def _follow(entries: list[dict[str, Any]], old: str, new: str) -> None:
    """A dataset of videos names the folder of the image embeddings that upstream makes for it."""
    for entry in entries:
        if entry.get(_EMBEDS_OF) == old:
            entry[_EMBEDS_OF] = new


def _parent(run: Run) -> Path:
    options = run.options
    if options.persistent and options.cache_dir:
        return Path(options.cache_dir)
    return run.part(PrivateFolder).path


def _set_in_the_config() -> frozenset[str]:
    given = StateHooks.get_raw_config()
    return frozenset(kind for key, kind in _CONFIG_KEYS.items() if given.get(key))


def _moves(run: Run) -> bool:
    return bool(run.options.kinds) and not (run.options.persistent and run.options.cache_dir is None)


def with_cache_directories(
    entries: list[dict[str, Any]], *, model_family: str, kinds_set_elsewhere: frozenset[str] = frozenset()
) -> list[dict[str, Any]]:
    """The dataset entries with a cache folder where they name none; a kind whose folder the config sets stays as it is.

    The model family is part of the path, as in upstream's own default: latents of one model are wrong for another.
    """
    run = current()
    if run is None or not _moves(run):
        return entries
    return [_with_directory(entry, run, model_family, kinds_set_elsewhere) for entry in entries]


def _with_directory(
    entry: dict[str, Any], run: Run, model_family: str, set_elsewhere: frozenset[str]
) -> dict[str, Any]:
    options = run.options
    key, kind = DIRECTORY_KEYS.get(entry.get("dataset_type", "image"), ("", ""))
    if kind not in options.kinds:
        return entry
    name = entry.get("id", "")
    own = entry.get(key) or (f"the {kind} folder of the training config" if kind in set_elsewhere else None)
    if own or entry.get("type", "local") not in LOCAL_TYPES:
        left = f"{key} is {own}" if own else f"its type is {entry.get('type')}"
        kept = "" if options.persistent else "; its files stay after the run"
        logger.info("GH200 caches: dataset %s keeps its own cache folder (%s)%s", name, left, kept)
        return entry
    return entry | {key: str(_parent(run) / kind / model_family / name)}
