"""Our keys as fields of upstream's registry: known to its parser, its pages, its search and its saves."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..settings.keys import BLOCK_KEYS, SCHEMA_KEY
from ..settings.schema import TrainingConfig


class _Place(NamedTuple):
    """Where upstream's page shows a field; its advanced subsections are folded."""

    label: str
    tab: str
    section: str
    subsection: str | None = None


_PLACES = {
    "cache_config": _Place("Unified Memory Caches", "basic", "caching"),
    "gh200_optimizations": _Place("GH200 Optimizations", "hardware", "hardware"),
    "datasets": _Place("Inline Datasets", "basic", "training_data", "advanced"),
    "data_backend": _Place("Inline Dataset (Older Spelling)", "basic", "training_data", "advanced"),
    "use_gh200_trainer": _Place("Use GH200 Trainer (Older Spelling)", "hardware", "hardware", "advanced"),
    "initial_effective_batch_size": _Place(
        "Initial Effective Batch Size (Older Spelling)", "hardware", "hardware", "advanced"
    ),
}


def register(registry: Any) -> None:
    """Adds one JSON field per block, and the key that only editors read, which is text and no argument."""
    pattern = next(iter(registry._fields.values()))
    kinds, levels = type(pattern.field_type), type(pattern.importance)
    for order, name in enumerate(sorted(BLOCK_KEYS), start=1000):
        described = (TrainingConfig.model_fields[name].description or "").replace("`", "")
        registry._add_field(
            type(pattern)(
                name=name,
                arg_name=f"--{name}",
                ui_label=_PLACES[name].label,
                field_type=kinds.TEXT_JSON,
                tab=_PLACES[name].tab,
                section=_PLACES[name].section,
                subsection=_PLACES[name].subsection,
                help_text=f"GH200: {described} JSON; every key is explained in docs/SETTINGS.md.",
                importance=levels.ADVANCED,
                order=order,
            )
        )
    registry._add_field(
        type(pattern)(
            name=SCHEMA_KEY,
            arg_name=None,
            ui_label="JSON Schema",
            field_type=kinds.TEXT,
            tab="basic",
            section="project",
            subsection="advanced",
            help_text="Where an editor finds the schema of this file.",
            importance=levels.ADVANCED,
            order=1000,
        )
    )
