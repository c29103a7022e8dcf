"""The fork's keys in a training config: as JSON values, under one spelling, with environment placeholders resolved."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from .config_file import read_config_file
from .keys import AUTO, SCHEMA_KEY, decoded, flat_place, is_ours, plain_key

_PLACEHOLDER = re.compile(r"\{env:([^{}]+)\}")


def blocks_of(config: Mapping[str, object]) -> dict[str, object]:
    """Our keys by plain name, and misspelt blocks, which SimpleTuner would drop; all values fit into JSON."""
    named: dict[str, object] = {}
    for key, value in config.items():
        if value is None or not is_ours(key, value):
            continue
        name = plain_key(key)
        if isinstance(value, str):
            value = decoded(value)
        named[name] = _one(named.get(name, value), value, f'as "{name}" and as "--{name}"')
    return {name: _jsonable(value) for name, value in joined(named).items()}


def joined(config: Mapping[str, object]) -> dict[str, object]:
    """A config by plain names, in which keys in their flat spelling have become keys of their blocks."""
    places = {name: place for name, value in config.items() if (place := flat_place(name, value))}
    result = {name: value for name, value in config.items() if name not in places}
    for name, (block, key) in places.items():
        given, value = result.get(block, {}), config[name]
        given = {"profile": AUTO} if given == AUTO else given
        where = f'as "{block}.{key}" and as "{name}"'
        if isinstance(given, Mapping):
            result[block] = {**given, key: _one(given.get(key, value), value, where)}
        else:
            result[block] = _one(given, value, where)
    return result


def _one(first: object, second: object, where: str) -> object:
    """One value of two. Text where another belongs: validation will name the key and show this sentence."""
    return first if first == second else f"given twice, {where}, with different values"


def others_of(config: Mapping[str, object]) -> dict[str, object]:
    """The keys that are SimpleTuner's, by plain name, as they were given."""
    named = ((plain_key(key), value) for key, value in config.items() if value is None or not is_ours(key, value))
    return {name: value for name, value in named if name != SCHEMA_KEY}


def loaded_config(path: Path) -> dict[str, object]:
    """The keys and values a run gets from a config file: for whoever judges the file without starting a run."""
    return loaded_values(read_config_file(path))


def loaded_values(config: Mapping[str, object]) -> dict[str, object]:
    """The same of a config that is read already."""
    return {name: with_environment(value) for name, value in others_of(config).items()} | blocks_of(config)


def with_environment(value: object) -> object:
    """`{env:NAME}` in any text of a block, as upstream resolves it in its own values."""
    if isinstance(value, str):
        return _PLACEHOLDER.sub(lambda match: os.environ.get(match.group(1), ""), value)
    if isinstance(value, dict):
        return {key: with_environment(item) for key, item in value.items()}
    return [with_environment(item) for item in value] if isinstance(value, list) else value


def _jsonable(value: object) -> object:
    try:
        return with_environment(json.loads(json.dumps(value, default=_plain)))
    except (TypeError, ValueError, RecursionError) as error:
        return f"(cannot be written as JSON: {str(error)[:200] or type(error).__name__})"


def _plain(value: object) -> object:
    if isinstance(value, os.PathLike) or hasattr(value, "isoformat"):
        return str(value)
    raise TypeError(f"a value of type {type(value).__name__}")
