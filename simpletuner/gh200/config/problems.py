"""Turns what pydantic finds into sentences: key path, value, what is allowed, and the nearest right key."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from ..errors import GH200Error

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

SHOWN_CHARACTERS = 80
_SIMPLE_TYPES = {
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "object": "a block of keys",
    "array": "a list",
}
_BOUNDS = {"minimum": "at least {}", "exclusiveMinimum": "above {}", "maximum": "at most {:.0f}"}


@dataclass(frozen=True)
class Problem:
    """One thing wrong in the settings, at the key path an operator can find."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class SettingsError(GH200Error):
    """Everything wrong with the GH200 settings, at once."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        lines = "\n".join(str(problem) for problem in self.problems)
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        super().__init__(
            f"GH200 settings: {count}, so the run stops before anything is loaded.",
            where=lines,
            fix="correct the training config or the environment; every key is explained in docs/SETTINGS.md",
        )


def shown(value: object) -> str:
    """The value as JSON, cut short: it goes into an error line."""
    try:
        text = json.dumps(value, ensure_ascii=True, default=repr)
    except (TypeError, ValueError, RecursionError):
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def allowed_values(schema: dict[str, Any]) -> str:
    """A JSON Schema property in words, e.g. `a whole number, at least 1`."""
    if "anyOf" in schema:
        return " or ".join(allowed_values(option) for option in schema["anyOf"] if option.get("type") != "null")
    if "enum" in schema:
        return "one of " + ", ".join(json.dumps(value) for value in schema["enum"])
    words = _SIMPLE_TYPES.get(schema.get("type", ""), "a block of keys")
    bounds = [text.format(schema[key]) for key, text in _BOUNDS.items() if key in schema]
    if schema.get("minLength"):
        bounds.append("not empty")
    return ", ".join([words, *bounds])


def nearest(word: str, choices: Iterable[str], cutoff: float = 0.5) -> str:
    """` Did you mean "x"?` for the closest choice, or nothing."""
    matches = get_close_matches(word, list(choices), n=1, cutoff=cutoff)
    return f' Did you mean "{matches[0]}"?' if matches else ""


def start_problems(starts: list[int]) -> list[str]:
    """Why the rows of `batch_rampup_table` cannot start so."""
    found = [f"the first row must start at 0, not at {starts[0]}"] if starts and starts[0] != 0 else []
    rising = sorted(set(starts)) == starts
    return found if rising else [*found, f"the starts must rise; they are {', '.join(map(str, starts))}"]


def join_path(*parts: object) -> str:
    """`datasets[0].in_memory.compression` from its pieces."""
    path = ""
    for part in parts:
        piece = f"[{part}]" if isinstance(part, int) else str(part)
        path += piece if not path or piece.startswith("[") else f".{piece}"
    return path


def _one_problem(error: Any, model: type[BaseModel], where: str) -> Problem:
    properties: dict[str, Any] = model.model_json_schema()["properties"]
    location = error["loc"]
    key = str(location[0]) if location else ""
    path = join_path(where, key) if key else where
    if error["type"] in {"extra_forbidden", "invalid_key"}:
        known = ", ".join(properties)
        return Problem(
            path, f"unknown key (value {shown(error['input'])}).{nearest(key, properties)} Known keys: {known}"
        )
    if not key:
        return Problem(path, f"must be {_SIMPLE_TYPES['object']}, got {shown(error['input'])}")
    schema = properties.get(key, {})
    value = error["input"]
    options = [choice for option in (schema, *schema.get("anyOf", ())) for choice in option.get("enum", ())]
    hint = nearest(value, options) if isinstance(value, str) else ""
    return Problem(path, f"must be {allowed_values(schema)}; got {shown(value)}.{hint}")


def problems_of(error: ValidationError, model: type[BaseModel], where: str) -> list[Problem]:
    """One problem per faulty key; a value that fails several alternatives of a type is named once."""
    found = [_one_problem(item, model, where) for item in error.errors(include_url=False)]
    return list({problem.path: problem for problem in reversed(found)}.values())[::-1]
