"""The controls of our tab, made from the settings' own models: label, help, choices, bounds, default."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import BaseModel

from ..settings.problems import allowed_values
from ..settings.schema import CacheConfig, Optimizations

_GROUPS = (
    ("The ramp", ("rampup", "effective_batch_size", "measure_gradient", "accept_changed_ramp")),
    ("Training beyond HBM", ("managed_memory",)),
)
_REST = "Memory hints, start and telemetry"


@dataclass(frozen=True)
class Control:
    """One key of a block; `kind` is switch, choice, number, text or json, `least` what a number must not go below."""

    block: str
    key: str
    label: str
    help: str
    kind: str
    default: str
    allowed: str
    choices: tuple[str, ...] = ()
    least: float | None = None
    whole: bool = False

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def controls() -> dict[str, list[Control]]:
    """All of them under the titles they stand below."""
    titled: dict[str, list[Control]] = {"VAE and text caches": _of("cache_config", CacheConfig)}
    for control in _of("gh200_optimizations", Optimizations):
        title = next((title for title, words in _GROUPS if any(word in control.key for word in words)), _REST)
        titled.setdefault(title, []).append(control)
    return titled


def _of(block: str, model: type[BaseModel]) -> list[Control]:
    properties: dict[str, dict[str, Any]] = model.model_json_schema()["properties"]
    return [_control(block, key, schema) for key, schema in properties.items()]


def _control(block: str, key: str, schema: dict[str, Any]) -> Control:
    shape = next((option for option in schema.get("anyOf", ()) if option.get("type") != "null"), schema)
    default = schema.get("default")
    kinds = {"boolean": "switch", "integer": "number", "number": "number", "string": "text"}
    return Control(
        block=block,
        key=key,
        label=key.replace("_", " ").replace("uvm", "UVM").replace(" lr ", " LR ").replace(" gb", " (GB)"),
        help=str(schema.get("description", "")).replace("`", ""),
        kind="choice" if "enum" in shape else kinds.get(shape.get("type", ""), "json"),
        default="" if default is None else default if isinstance(default, str) else json.dumps(default),
        allowed=allowed_values(schema),
        choices=tuple(shape.get("enum", ())),
        least=shape.get("minimum", shape.get("exclusiveMinimum")),
        whole=shape.get("type") == "integer",
    )
