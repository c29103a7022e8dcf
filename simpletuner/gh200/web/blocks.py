"""The fork's keys in configs that a web page writes: what a form, a file and a finished save say about them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..config.keys import AUTO, BLOCK_KEYS, decoded, is_misspelt_block, is_ours, plain_key, unique_keys
from ..errors import GH200Error

# Keys of a training config that no file of datasets has.
_TRAINING_KEYS = frozenset(
    {"model_family", "model_type", "output_dir", "pretrained_model_name_or_path", "cache_config", "gh200_optimizations"}
)


class BrokenBlock(GH200Error):
    """Text in the place of a block that is no JSON, or says a thing twice."""


def kept_of(config: object) -> dict[str, Any]:
    """The blocks of a config, misspelt ones too, which upstream's save would drop, under their plain names."""
    if not isinstance(config, Mapping):
        return {}
    named = ((plain_key(key), value) for key, value in config.items())
    return {name: value for name, value in named if name in BLOCK_KEYS or is_misspelt_block(name, value)}


def is_training_config(data: object) -> bool:
    """Whether a JSON file with a list of datasets is a training config that has them inline."""
    if not isinstance(data, Mapping):
        return False
    inner = data.get("config")
    names = {plain_key(key) for key in (*data, *(inner if isinstance(inner, Mapping) else ()))}
    return not _TRAINING_KEYS.isdisjoint(names)


def parsed(name: str, text: str) -> Any:
    """The JSON that a form has for a block; the profile's name needs no quotes."""
    if text.strip() == AUTO and name == "gh200_optimizations":
        return AUTO
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=unique_keys)
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
        if not given.strip():
            values.pop(name, None)
            continue
        try:
            value = parsed(name, given)
        except BrokenBlock as error:
            if given != on_disk.get(name):
                broken[name] = error
            continue
        before = on_disk.get(name)
        # A page writes 1.0 as 1: what means the same stays as the file has it.
        if name not in on_disk or value != (decoded(before) if isinstance(before, str) else before):
            values[name] = value
    return values, broken


def given_in(form: Any, on_disk: Mapping[str, Any]) -> dict[str, str]:
    """Our keys in a submitted form. Without dashes it is what the open tab shows, with them what the page remembers."""
    names = {plain_key(key) for key in form} & {*BLOCK_KEYS, *on_disk}
    return {name: str(form[name] if name in form else form[f"--{name}"]) for name in names}


def written(config: Any) -> tuple[Any, list[BrokenBlock]]:
    """A config in which blocks that a page handed over as text are blocks again; what cannot be read stays text."""
    if not isinstance(config, Mapping):
        return config, []
    result, broken = {}, []
    for key, value in config.items():
        if isinstance(value, str) and is_ours(key, value):
            if not value.strip():
                continue
            try:
                value = parsed(plain_key(key), value)
            except BrokenBlock as error:
                broken.append(error)
        result[key] = value
    return result, broken


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON number")
