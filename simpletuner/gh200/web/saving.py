"""Where SimpleTuner's server saves a config: our blocks stay, and nothing is written over what the page has not seen."""

from __future__ import annotations

import hashlib
import html
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastapi import HTTPException

from ..config.keys import plain_key
from .forms import REVISION, BrokenBlock, fields_in, kept_of, settled, texts_in, written

_SHOWN_KEYS = 8
_MOST_REVISIONS = 256


@dataclass
class Revision:
    """A config as one page got it, as it saved it last, and the state of the file that a save was rejected for."""

    name: str
    config: Mapping[str, Any]
    saved: Mapping[str, Any] | None = None
    rejected_for: str | None = None


class Revisions:
    """The newest configs that pages were given: a save names its own, so that two pages never overwrite each other."""

    def __init__(self) -> None:
        self._given: dict[str, Revision] = {}
        # The page whose save was accepted and is being written.
        self.saving: Revision | None = None

    def give(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The answer to a page that asks for a config, with a revision among the values of the config."""
        number = secrets.token_hex(8)
        self._given[number] = Revision(answer["name"], answer["config"])
        while len(self._given) > _MOST_REVISIONS:
            del self._given[next(iter(self._given))]
        return answer | {"config": {**answer["config"], REVISION: number}}

    def of(self, form: Any) -> Revision | None:
        """What the page had got that sends this form; None for a client that is no page, or one from long ago."""
        return self._given.get(str(form.get(REVISION) or form.get(f"--{REVISION}") or ""))

    def written(self, config: Mapping[str, Any]) -> None:
        """What a page has saved it has seen: it goes on with values of its own and not with those of the file."""
        if self.saving is not None:
            self.saving.saved, self.saving = config, None


REVISIONS = Revisions()


def completed_bundle(bundle: Any, form: Any, revision: Revision | None) -> Any:
    """SimpleTuner's result of a form, with our keys as form and file have them."""
    before = kept_of(revision.config if revision else loaded(bundle.store, bundle.active_config))
    texts, fields = texts_in(form, before, complete=revision is not None), fields_in(form)
    values, broken = settled(before, texts, fields)
    for config in (bundle.complete_config, bundle.config_dict, bundle.save_config):
        for name in {*before, *texts, *fields, REVISION}:
            config.pop(name, None)
            config.pop(f"--{name}", None)
    bundle.save_config.update(values)
    # What cannot be read goes on as the text it is: validation names its place.
    started = {**values, **{name: texts[name] for name in broken if name in texts}}
    bundle.complete_config.update({f"--{name}": value for name, value in started.items()})
    return bundle


def readable(config: Any) -> Any:
    """A config that is to be written whole, its blocks as blocks."""
    result, broken = written(config)
    if broken:
        raise _rejection(422, _message(broken))
    return result


def check_inside(store: Any, path: Path) -> None:
    """SimpleTuner accepts `..` as a name."""
    if Path(os.path.abspath(store.config_dir)) not in Path(os.path.abspath(path)).parents:
        raise _rejection(400, "Nothing was saved: this name leads out of the directory of configs.")


def check_save(form: Any, store: Any, revision: Revision | None) -> None:
    """Before a form is saved. SimpleTuner answers every failure behind this with "saved", so it is rejected here."""
    name = store.get_active_config() or "default"
    path = Path(store._get_config_path(name))
    check_inside(store, path)
    on_disk = _readable(store, name, path)
    before = kept_of(revision.config if revision else on_disk)
    broken = settled(before, texts_in(form, before, complete=revision is not None), fields_in(form))[1]
    if broken:
        raise _rejection(422, _message(broken.values()))
    if revision is not None:
        _reject_unseen(revision, name, on_disk, path)
    REVISIONS.saving = revision


def _reject_unseen(revision: Revision, name: str, on_disk: Any, path: Path) -> None:
    if revision.name != name:
        raise _rejection(
            409,
            f'Nothing was saved: this page shows the config "{revision.name}", but "{name}" is the active one by now '
            f'(another browser?). Choose "{revision.name}" again in this page, and save.',
        )
    changed = _differing(revision.saved or revision.config, on_disk)
    if not changed:
        return
    state = _state(path)
    if revision.rejected_for == state:
        _put_aside(path)
        return
    revision.rejected_for = state
    named = ", ".join(changed[:_SHOWN_KEYS]) + (" ..." if len(changed) > _SHOWN_KEYS else "")
    raise _rejection(
        409,
        f"Nothing was saved: {path.name} of {name} was changed on disk after this page had read it ({named}). "
        "Your values are still in this page. Reload the page to see those of the file, or save again to replace "
        "them: the file as it is now will be kept beside it.",
    )


def _readable(store: Any, name: str, path: Path) -> Any:
    """The config on disk. A file that is there and cannot be read is not replaced: SimpleTuner would start from nothing."""
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


def _differing(seen: object, on_disk: object) -> list[str]:
    before, now = _plain(seen), _plain(on_disk)
    return sorted(key for key in before.keys() | now.keys() if not _same(before.get(key), now.get(key)))


def _same(first: object, second: object) -> bool:
    """A learning rate that is typed as 1e-4 is saved as a text, and written as a number."""
    return first == second or (isinstance(first, str) != isinstance(second, str) and _number(first) == _number(second))


def _number(value: object) -> float | str:
    try:
        return float(str(value))
    except ValueError:
        return str(value)


def _plain(config: object) -> dict[str, Any]:
    return {plain_key(key): value for key, value in config.items()} if isinstance(config, Mapping) else {}


def _state(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "none"


def _put_aside(path: Path) -> None:
    if path.exists():
        shutil.copy2(path, path.with_name(f"{path.name}.backup-{datetime.now(UTC):%Y%m%d_%H%M%S_%f}"))


def _rejection(status: int, message: str) -> HTTPException:
    """The page inserts the text as HTML, and it may contain names from a request."""
    return HTTPException(status, detail=html.escape(message, quote=False))


def _message(broken: Iterable[BrokenBlock]) -> str:
    return "Nothing was saved. " + " ".join(f"{error.what}: {error.why}." for error in broken)
