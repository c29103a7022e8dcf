"""Every key of our two blocks as a field of SimpleTuner's registry: its pages, search and dependencies know them."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NamedTuple

from ..config.keys import BLOCK_KEYS, FLAT_PREFIX, SCHEMA_KEY
from ..config.schema import CacheConfig, ConfigBlock, Optimizations

BLOCKS: dict[str, type[ConfigBlock]] = {"gh200_optimizations": Optimizations, "cache_config": CacheConfig}
RAMP_SWITCH = "enable_batch_size_rampup"
AUTOMATIC = "automatic"
# Tab, section, title, icon, and where it stands among the sections of the tab.
SECTIONS = (
    ("hardware", "gh200_memory", "GH200 memory", "fas fa-memory", 5),
    ("training", "batch_ramp", "Batch ramp", "fas fa-stairs", 15),
)
_RAMP_KEY = re.compile("ramp|effective_batch|noise_scale")
_DEPENDS: dict[str, tuple[str, list[Any]]] = {
    "managed_memory_targets": ("managed_memory", ["state", "all", "auto"]),
    "managed_memory_limit_gb": ("managed_memory", ["state", "all", "auto"]),
    "adaptive_prefetch": ("prefetch", [True]),
}
_LABELS = {
    RAMP_SWITCH: "Batch Size Ramp",
    "profile": "GH200 Preset",
    "memory_limit_gb": "Cache Memory Limit (GB)",
    "placement": "Cached Latents Placement",
    "prefetch": "Prefetch Next Batch",
    "preload": "Preload Caches",
    "accept_changed_ramp": "Accept Changed Ramp on Resume",
}
_ONE_LINE = 110
_WORDS = {"uvm": "UVM", "gb": "(GB)", "lr": "LR", "vae": "VAE", "gpu": "GPU", "cpu": "CPU", "hbm": "HBM", "ema": "EMA"}


class Key(NamedTuple):
    """One key of a block: where it belongs, what it may be, and how a form shows it."""

    block: str
    name: str
    schema: dict[str, Any]
    kind: str
    default: Any
    basic: bool

    @property
    def section(self) -> str:
        """One of SECTIONS."""
        return "batch_ramp" if _RAMP_KEY.search(self.name) else "gh200_memory"


@cache
def keys() -> dict[str, Key]:
    """Our keys by the name of their field."""
    found = {}
    for block, model in BLOCKS.items():
        for place, (name, described) in enumerate(model.model_json_schema()["properties"].items()):
            choices = [entry for entry in described.get("anyOf", [described]) if entry.get("type") != "null"]
            schema = described | choices[0]
            kind = _kind(name, schema)
            default = AUTOMATIC if kind == "switch" else schema.get("default")
            found[f"{FLAT_PREFIX}{name}"] = Key(block, name, schema, kind, default, place < model.basic)
    return found


def _kind(name: str, schema: dict[str, Any]) -> str:
    if "enum" in schema or "const" in schema:
        return "select"
    if schema["type"] == "boolean":
        absent_decides = (schema["default"] is None or "Absent:" in schema["description"]) and name != RAMP_SWITCH
        return "switch" if absent_decides else "checkbox"
    if schema["type"] == "array":
        return "multi_select" if "enum" in schema["items"] else "text_json"
    return "text" if schema["type"] == "string" else "number"


def register_fields(registry: Any) -> None:
    """Adds a field per key, and the blocks themselves, which are arguments of the trainer and on no page."""
    pattern = next(iter(registry._fields.values()))
    types = import_types(pattern)
    for order, (name, key) in enumerate(keys().items()):
        registry._add_field(_field(types, name, key, order))
    for name in (SCHEMA_KEY, *sorted(BLOCK_KEYS)):
        argument = f"--{name}" if name in BLOCK_KEYS else None
        kind = types.FieldType.TEXT_JSON if argument else types.FieldType.TEXT
        registry._add_field(types.ConfigField(name, argument, name, kind, tab="gh200", section="blocks"))


def import_types(pattern: Any) -> Any:
    """The module that defines the classes of fields, in whichever place a release has it."""
    from importlib import import_module

    return import_module(type(pattern).__module__)


def _field(types: Any, name: str, key: Key, order: int) -> Any:
    kind = "select" if key.kind == "switch" else key.kind
    help_text, tooltip = _texts(key.schema["description"])
    field = types.ConfigField(
        name=name,
        arg_name=None,
        ui_label=_LABELS.get(key.name) or _title(key.name),
        field_type=types.FieldType(kind),
        tab="training" if key.section == "batch_ramp" else "hardware",
        section=key.section,
        subsection=None if key.basic else "advanced",
        default_value=key.default,
        choices=_choices(key),
        validation_rules=list(_rules(types, key)),
        dependencies=list(_dependencies(types, key)),
        help_text=help_text,
        tooltip=tooltip,
        cmd_args_help=tooltip,
        importance=types.ImportanceLevel.IMPORTANT if key.basic else types.ImportanceLevel.ADVANCED,
        order=order,
    )
    if key.kind == "number":
        field.step = 1 if key.schema["type"] == "integer" else "any"
        field.min_value, field.max_value = key.schema.get("minimum"), key.schema.get("maximum")
    return field


def _rules(types: Any, key: Key) -> Any:
    for rule, bound in (("MIN", "minimum"), ("MAX", "maximum")):
        if bound in key.schema:
            kind = types.ValidationRuleType[rule]
            yield types.ValidationRule(kind, key.schema[bound], f"must be {bound[:3]}. {key.schema[bound]}")


def _dependencies(types: Any, key: Key) -> Any:
    on = (RAMP_SWITCH, [True]) if key.section == "batch_ramp" and key.name != RAMP_SWITCH else _DEPENDS.get(key.name)
    if on is not None and key.name != "measure_gradient_noise_scale":
        yield types.FieldDependency(f"{FLAT_PREFIX}{on[0]}", values=on[1], operator="in")


def _choices(key: Key) -> list[dict[str, str]] | None:
    if key.kind == "switch":
        named = {AUTOMATIC: "Automatic", "true": "On", "false": "Off"}
        return [{"value": value, "label": label} for value, label in named.items()]
    schema = key.schema["items"] if key.kind == "multi_select" else key.schema
    values = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    return [{"value": value, "label": _choice_label(key.name, value)} for value in values] or None


def _choice_label(name: str, value: str) -> str:
    return "Recommended for GH200" if (name, value) == ("profile", "auto") else _title(value)


def _title(name: str) -> str:
    return " ".join(_WORDS.get(word, word.capitalize()) for word in name.split("_"))


def _texts(description: str) -> tuple[str, str]:
    """One line for the page, and all of it for the tooltip."""
    text = description.replace("`", "")
    first = re.split(r"[.;:] ", text, maxsplit=1)[0]
    if len(first) > _ONE_LINE:
        first = first[:_ONE_LINE].rpartition(",")[0]
    return f"{first.rstrip('.')}.", text
