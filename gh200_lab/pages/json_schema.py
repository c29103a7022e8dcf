"""Dataclasses as JSON Schema, for the reports that are generated from them."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def schema_of(kind: Any, found: dict[str, Any]) -> dict[str, Any]:
    """A type of the facts as JSON Schema; dataclasses become definitions."""
    simple = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}
    if kind in simple:
        return {"type": simple[kind]}
    if is_dataclass(kind) and isinstance(kind, type):
        define(kind, found)
        return {"$ref": f"#/$defs/{kind.__name__}"}
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return {"anyOf": [schema_of(option, found) for option in arguments]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple:
        return {"type": "array", "items": schema_of(arguments[0], found)}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema_of(arguments[1], found)}
    raise TypeError(f"no JSON Schema for {kind}")


def define(kind: type, found: dict[str, Any]) -> None:
    """Add the definition of a dataclass and of all it refers to."""
    if kind.__name__ in found:
        return
    hints, definition = get_type_hints(kind), found.setdefault(kind.__name__, {})
    description = (kind.__doc__ or "").strip()
    if not description.startswith(f"{kind.__name__}("):
        definition["description"] = description
    definition["type"] = "object"
    definition["properties"] = {item.name: schema_of(hints[item.name], found) for item in fields(kind)}
    definition["required"] = [item.name for item in fields(kind)]
    definition["additionalProperties"] = False


def define_facts(facts: type, found: dict[str, Any]) -> None:
    """The facts of a diagnosis, with the two that are worked out from the others."""
    define(facts, found)
    found["Facts"]["properties"] |= {
        "memory_mode": {"enum": ["NUMA", "CDMM", "unknown", "none"]},
        "room_bytes": {"type": "integer", "minimum": 0},
    }
    found["Facts"]["required"] += ["memory_mode", "room_bytes"]


def report_schema(title: str, properties: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """A schema with these properties and definitions."""
    return {
        "$schema": DRAFT,
        "title": title,
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
        "$defs": found,
    }


def counted(names: tuple[str, ...], codes: dict[str, Any]) -> dict[str, Any]:
    """A summary: how many of each, and the exit code."""
    counts = {name: {"type": "integer", "minimum": 0} for name in names} | {"exit_code": codes}
    return {"type": "object", "properties": counts, "required": list(counts), "additionalProperties": False}
