"""Our keys between a page and a file: the page has fields and JSON, the file has blocks; what nobody changed stays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from ..config.keys import AUTO, BLOCK_KEYS, FLAT_PREFIX, decoded, is_misspelt_block, is_ours, plain_key, unique_keys
from ..config.problems import problems_of
from ..config.ramp_keys import RAMP_SIZES
from ..errors import GH200Error
from .fields import AUTOMATIC, BLOCKS, RAMP_SWITCH, Key, keys

# Keys of a training config that no file of datasets has.
_TRAINING_KEYS = frozenset(
    {"model_family", "model_type", "output_dir", "pretrained_model_name_or_path", "cache_config", "gh200_optimizations"}
)
# A page gets it with a config, as a value of it, and sends it back with a save.
REVISION = "gh200_revision"
_ON = frozenset({"true", "1", "yes", "on"})


class BrokenBlock(GH200Error):
    """A value of ours that cannot be read, or is given twice with two meanings."""


def kept_of(config: object) -> dict[str, Any]:
    """The blocks of a config, misspelt ones too, which SimpleTuner's save would drop, under their plain names."""
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


def field_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """The values of our fields, as a page shows them for a config with blocks."""
    blocks = kept_of(config)
    return {name: _shown(key, _block(blocks, key.block)) for name, key in keys().items()}


def _block(blocks: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    block = blocks.get(name)
    block = decoded(block) if isinstance(block, str) else block
    block = {"profile": AUTO} if block == AUTO else block
    return block if isinstance(block, Mapping) else {}


def _shown(key: Key, block: Mapping[str, Any]) -> Any:
    value = block.get(key.name)
    if key.name == RAMP_SWITCH and value is None:
        # Given sizes switch the ramp on.
        return any(block.get(size) is not None for size in RAMP_SIZES)
    if value is None:
        return key.default
    return str(value).lower() if key.kind == "switch" else value


def settled(
    base: Mapping[str, Any], texts: Mapping[str, str], fields: Mapping[str, list[str]]
) -> tuple[dict[str, Any], dict[str, BrokenBlock]]:
    """Our blocks after a form was filled in, and what of it cannot be read.

    `base` is what the form was made of. `texts` are blocks as JSON: one the form does not have stays, an empty one is
    removed. `fields` are single keys: only one with another value than in `base` changes its key, and it wins over the
    text of an unchanged block. A block and a field that were both changed, to different values, are an error.
    """
    values, broken = dict(base), {}
    for name, text in texts.items():
        try:
            _settle_block(values, base, name, text)
        except BrokenBlock as error:
            if text != base.get(name):
                broken[name] = error
    before, after = field_values(base), field_values(values)
    for name, given in fields.items():
        key = keys()[name]
        try:
            value = _typed(name, key, given)
            if value == before[name] or value == after[name] or (value is None and before[name] == key.default):
                continue
            if before[name] != after[name]:
                raise _given_twice(name, key, value, after[name])
            _set(values, key, value)
        except BrokenBlock as error:
            broken[name] = error
    return values, broken


def _settle_block(values: dict[str, Any], base: Mapping[str, Any], name: str, given: str) -> None:
    if not given.strip():
        values.pop(name, None)
        return
    value = parsed(name, given)
    before = base.get(name)
    # A page writes 1.0 as 1: what means the same stays as the file has it.
    if name not in base or value != (decoded(before) if isinstance(before, str) else before):
        values[name] = value


def _typed(name: str, key: Key, given: list[str]) -> Any:
    """The value of a field; None where it is empty."""
    text = given[-1].strip() if given else ""
    if key.kind == "multi_select":
        return [word for word in given if word] or None
    if key.kind == "checkbox":
        return any(word.lower() in _ON for word in given)
    if not text:
        return None
    if key.kind == "text_json":
        return parsed(name, text)
    return decoded(text) if key.kind == "number" else text


def problem_of_field(name: str, text: str) -> str | None:
    """What is wrong with a value typed into a field."""
    key = keys()[name]
    try:
        value = _typed(name, key, [text])
        BLOCKS[key.block].model_validate({} if value in (None, AUTOMATIC) else {key.name: value})
    except BrokenBlock as error:
        return f"{error.what}: {error.why}"
    except ValidationError as error:
        return "; ".join(problem.message for problem in problems_of(error, BLOCKS[key.block], key.block))
    return None


def _set(values: dict[str, Any], key: Key, value: Any) -> None:
    block = dict(_block(values, key.block))
    if value is None or value == AUTOMATIC:
        block.pop(key.name, None)
    else:
        block[key.name] = value == "true" if key.kind == "switch" else value
    values[key.block] = block
    if not block:
        del values[key.block]


def _given_twice(name: str, key: Key, field: Any, block: Any) -> BrokenBlock:
    what = f"{name} is {json.dumps(field)}, and {key.block}.{key.name} is {json.dumps(block)}"
    return BrokenBlock(what, where=name, why="both spellings of one key were changed", fix="change one of them back")


def texts_in(form: Any, before: Mapping[str, Any], complete: bool = False) -> dict[str, str]:
    """Our blocks in a submitted form. Without dashes it is what the open tab shows, with them what the page has stored.

    `complete`: the form is of a page, which sends all it has, so a block that it was given and does not send is removed.
    """
    names = {plain_key(key) for key in form} & {*BLOCK_KEYS, *before}
    texts = {name: str(form[name] if name in form else form[f"--{name}"]) for name in names}
    return texts | (dict.fromkeys((before.keys() & BLOCK_KEYS) - names, "") if complete else {})


def fields_in(form: Any) -> dict[str, list[str]]:
    """Our single keys in a submitted form; the same precedence."""
    named = {plain_key(key) for key in form if plain_key(key).startswith(FLAT_PREFIX)} & keys().keys()
    return {name: _all(form, name if name in form else f"--{name}") for name in named}


def _all(form: Any, name: str) -> list[str]:
    values = form.getlist(name) if hasattr(form, "getlist") else form[name]
    return [str(value) for value in (values if isinstance(values, list) else [values])]


def written(config: Any) -> tuple[Any, list[BrokenBlock]]:
    """A config that a page handed over whole, its blocks as blocks and its fields in them; what is broken stays text."""
    if not isinstance(config, Mapping):
        return config, []
    result, broken = {}, []
    fields = fields_in(config)
    for key, value in config.items():
        name = plain_key(key)
        if name in fields or name == REVISION:
            continue
        if isinstance(value, str) and is_ours(key, value):
            if not value.strip():
                continue
            try:
                value = parsed(name, value)
            except BrokenBlock as error:
                broken.append(error)
        result[key] = value
    if fields:
        blocks, wrong = settled(kept_of(result), {}, fields)
        result = {key: value for key, value in result.items() if plain_key(key) not in BLOCKS} | blocks
        broken += wrong.values()
    return result, broken


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON number")
