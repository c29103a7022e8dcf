"""Where upstream's server saves a config: our blocks stay, and nothing is written over what the page has not seen."""

from __future__ import annotations

import hashlib
import html
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastapi import HTTPException

from ..config.keys import plain_key
from .blocks import BrokenBlock, given_in, kept_of, settled, written

# Sent along by our script: the config as the page got it, and the state of the file it agreed to replace.
SEEN, REPLACES = "gh200_seen", "gh200_replaces"
ON_DISK_HEADER = "X-GH200-On-Disk"
_SHOWN_KEYS = 8


def completed_bundle(bundle: Any, form: Any) -> Any:
    """Upstream's result of a form, with our keys as form and file have them."""
    on_disk = kept_of(loaded(bundle.store, bundle.active_config))
    given = given_in(form, on_disk)
    values, broken = settled(on_disk, given)
    for config in (bundle.complete_config, bundle.config_dict, bundle.save_config):
        for name in {*on_disk, *given, SEEN, REPLACES}:
            config.pop(name, None)
            config.pop(f"--{name}", None)
    bundle.save_config.update(values)
    # What cannot be read goes on as the text it is: validation names its place.
    started = {**values, **{name: given[name] for name in broken}}
    bundle.complete_config.update({f"--{name}": value for name, value in started.items()})
    return bundle


def readable(config: Any) -> Any:
    """A config that is to be written whole, its blocks as blocks."""
    result, broken = written(config)
    if broken:
        raise _rejection(422, _message(broken))
    return result


def check_inside(store: Any, path: Path) -> None:
    """Upstream takes `..` for a name."""
    if Path(os.path.abspath(store.config_dir)) not in Path(os.path.abspath(path)).parents:
        raise _rejection(400, "Nothing was saved: this name leads out of the directory of configs.")


def check_save(form: Any, service: Any) -> None:
    """Before a form is saved. Upstream answers every failure behind this with "saved", so it is rejected here."""
    store = service.get_config_store()
    name = store.get_active_config() or "default"
    path = Path(store._get_config_path(name))
    check_inside(store, path)
    on_disk = _readable(store, name, path)
    ours = kept_of(on_disk)
    broken = settled(ours, given_in(form, ours))[1]
    if broken:
        raise _rejection(422, _message(broken.values()))
    seen = _seen(form)
    if seen is not None:
        _reject_unseen(seen, name, on_disk, path, str(form.get(REPLACES) or ""))


def _reject_unseen(seen: Mapping[str, Any], name: str, on_disk: Any, path: Path, replaces: str) -> None:
    shown = seen.get("name")
    if shown != name:
        raise _rejection(
            409,
            f'Nothing was saved: this page shows the config "{shown}", but "{name}" is the active one by now '
            f'(another browser?). Choose "{shown}" again in this page, and save.',
        )
    changed = _differing(seen.get("config"), on_disk)
    if not changed:
        return
    state = _state(path)
    if replaces == state:
        _put_aside(path)
        return
    named = ", ".join(changed[:_SHOWN_KEYS]) + (" ..." if len(changed) > _SHOWN_KEYS else "")
    raise _rejection(
        409,
        f"Nothing was saved: {path.name} of {name} was changed on disk after this page had read it ({named}). "
        "Your values are still in this page. Reload the page to see those of the file, or save again to replace "
        "them: the file as it is now will be kept beside it.",
        {ON_DISK_HEADER: state},
    )


def _readable(store: Any, name: str, path: Path) -> Any:
    """The config on disk. A file that is there and cannot be read is not replaced: upstream would start from nothing."""
    if not path.exists():
        return {}
    try:
        return store.load_config(name)[0]
    except (OSError, ValueError, AttributeError) as error:
        raise _rejection(
            409,
            f"Nothing was saved: {path} cannot be read, and would be lost. {error} Correct it, or move it away.",
        ) from error


def loaded(store: Any, name: str) -> Any:
    """A config of the store; empty where it cannot be read."""
    try:
        return store.load_config(name)[0]
    except (OSError, ValueError, AttributeError):
        return {}


def _seen(form: Any) -> Mapping[str, Any] | None:
    """What the page got when it asked for the config; None for clients without our script."""
    try:
        seen = json.loads(form.get(SEEN) or "null")
    except (ValueError, RecursionError):
        return None
    return seen if isinstance(seen, Mapping) else None


def _differing(seen: object, on_disk: object) -> list[str]:
    before, now = _plain(seen), _plain(on_disk)
    return sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))


def _plain(config: object) -> dict[str, Any]:
    return {plain_key(key): value for key, value in config.items()} if isinstance(config, Mapping) else {}


def _state(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "none"


def _put_aside(path: Path) -> None:
    if not path.exists():
        return
    shutil.copy2(path, path.with_name(f"{path.name}.backup-{datetime.now(UTC):%Y%m%d_%H%M%S_%f}"))


def _rejection(status: int, message: str, headers: dict[str, str] | None = None) -> HTTPException:
    """The page inserts the text as HTML, and it may contain names from a request."""
    return HTTPException(status, detail=html.escape(message, quote=False), headers=headers)


def _message(broken: Iterable[BrokenBlock]) -> str:
    return "Nothing was saved. " + " ".join(f"{error.what}: {error.why}." for error in broken)
