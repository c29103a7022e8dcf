"""The fork's keys in configs that a web page writes: what a form, a file and a finished save say about them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..errors import GH200Error
from ..settings.keys import BLOCK_KEYS, SCHEMA_KEY, decoded, is_misspelt_block, plain_key

KEPT_KEYS = BLOCK_KEYS | {SCHEMA_KEY}
# Keys of a training config that no file of datasets has.
_TRAINING_KEYS = frozenset(
    {"model_family", "model_type", "output_dir", "pretrained_model_name_or_path", "cache_config", "gh200_optimizations"}
)


class BrokenBlock(GH200Error):
    """Text in the place of a block that is no JSON, or says a thing twice."""


def kept_of(config: object) -> dict[str, Any]:
    """The keys of a config that upstream's save would drop and that are the fork's, under their plain names."""
    if not isinstance(config, Mapping):
        return {}
    named = ((plain_key(key), value) for key, value in config.items())
    return {name: value for name, value in named if name in KEPT_KEYS or is_misspelt_block(name, value)}


def is_training_config(data: object) -> bool:
    """Whether a JSON file with a list of datasets is a training config that has them inline."""
    if not isinstance(data, Mapping):
        return False
    inner = data.get("config")
    names = {plain_key(key) for key in data} | (
        {plain_key(key) for key in inner} if isinstance(inner, Mapping) else set()
    )
    return bool(names & _TRAINING_KEYS)


def parsed(name: str, text: str) -> Any:
    """The JSON a form has for a key; `$schema` is plain text."""
    if name == SCHEMA_KEY:
        value = decoded(text)
        return value if isinstance(value, str) else text
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_key_twice)
    except RecursionError:
        why = "it is nested too deeply"
    except json.JSONDecodeError as error:
        why = f"{error.msg}: line {error.lineno} column {error.colno}"
    except ValueError as error:
        why = str(error)
    raise BrokenBlock(f"{name} is not JSON", where=name, why=why, fix="correct the block, or empty it to remove it")


def settled(on_disk: Mapping[str, Any], form: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, BrokenBlock]]:
    """The values of our keys after a form was filled in, and those of its texts that cannot be read.

    A key the form does not have stays as it is in the file; an empty text removes it.
    """
    values, broken = dict(on_disk), {}
    for name, given in form.items():
        if not isinstance(given, str):
            values[name] = given
        elif not given.strip():
            values.pop(name, None)
        else:
            try:
                value = parsed(name, given)
            except BrokenBlock as error:
                if given != on_disk.get(name):
                    broken[name] = error
                continue
            if name not in on_disk or value != _meaning(on_disk[name]):
                values[name] = value
    return values, broken


def given_in(form: Any, on_disk: Mapping[str, Any]) -> dict[str, Any]:
    """Our keys in a submitted form, with or without dashes; of several values the last that says something."""
    found: dict[str, Any] = {}
    for key in form:
        name = plain_key(key)
        if name in KEPT_KEYS or name in on_disk:
            values = form.getlist(key) if hasattr(form, "getlist") else form[key]
            found[name] = _last(values) if isinstance(values, list | tuple) else values
    return {name: value for name, value in found.items() if value is not None}


def written(config: Any) -> Any:
    """A config about to be written: blocks that a page handed over as text become blocks again."""
    if not isinstance(config, Mapping):
        return config
    result = {}
    for key, value in config.items():
        if plain_key(key) in BLOCK_KEYS and isinstance(value, str):
            value = _meaning(value)
            if value is None or (isinstance(value, str) and not value.strip()):
                continue
        result[key] = value
    return result


def _meaning(value: Any) -> Any:
    return decoded(value) if isinstance(value, str) else value


def _last(values: list[Any] | tuple[Any, ...]) -> Any:
    texts = [value for value in values if value not in (None, "")]
    return texts[-1] if texts else ""


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON number")


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f'the key "{twice}" stands there twice')
    return result
