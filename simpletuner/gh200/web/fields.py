"""Our keys as fields of upstream's registry: known to its parser, its pages, its search and its saves."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..config.keys import BLOCK_KEYS, SCHEMA_KEY
from ..config.schema import TrainingConfig


class _Place(NamedTuple):
    """Where upstream's page shows a field; its advanced subsections are folded."""

    label: str
    tab: str
    section: str
    subsection: str | None = None


_PLACES = {
    SCHEMA_KEY: _Place("JSON Schema", "basic", "project", "advanced"),
    "cache_config": _Place("Unified Memory Caches", "basic", "caching"),
    "data_backend": _Place("Inline Dataset (Older Spelling)", "basic", "training_data", "advanced"),
    "datasets": _Place("Inline Datasets", "basic", "training_data", "advanced"),
    "gh200_optimizations": _Place("GH200 Optimizations", "hardware", "hardware"),
    "initial_effective_batch_size": _Place(
        "Initial Effective Batch Size (Older Spelling)", "hardware", "hardware", "advanced"
    ),
    "use_gh200_trainer": _Place("Use GH200 Trainer (Older Spelling)", "hardware", "hardware", "advanced"),
}


def register_fields(registry: Any) -> None:
    """Adds one JSON field per block, and the key that only editors read, which is text and no argument."""
    pattern = next(iter(registry._fields.values()))
    kinds, levels = type(pattern.field_type), type(pattern.importance)
    for order, (name, place) in enumerate(_PLACES.items(), start=1000):
        block = name in BLOCK_KEYS
        registry._add_field(
            type(pattern)(
                name=name,
                arg_name=f"--{name}" if block else None,
                ui_label=place.label,
                field_type=kinds.TEXT_JSON if block else kinds.TEXT,
                tab=place.tab,
                section=place.section,
                subsection=place.subsection,
                help_text=_help(name) if block else "Where an editor finds the schema of this file.",
                importance=levels.ADVANCED,
                order=order,
            )
        )


def _help(name: str) -> str:
    described = (TrainingConfig.model_fields[name].description or "").replace("`", "")
    return f"GH200: {described} JSON; every key is explained in docs/SETTINGS.md."
