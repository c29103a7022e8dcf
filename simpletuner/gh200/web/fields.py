"""Our keys as fields of upstream's registry: known to its parser, its pages, its search and its saves."""

from __future__ import annotations

from typing import Any

from ..settings.keys import SCHEMA_KEY
from ..settings.schema import TrainingConfig
from .blocks import KEPT_KEYS

TAB = "gh200"
SECTIONS = {"cache_config": "caches", "gh200_optimizations": "optimizations", "datasets": "datasets"}
OLDER = "older_spellings"


def register(registry: Any) -> None:
    """Adds one field per key, all of JSON; the key that only editors read is no argument."""
    pattern = next(iter(registry._fields.values()))
    for order, name in enumerate(sorted(KEPT_KEYS, key=lambda name: (name not in SECTIONS, name))):
        model = TrainingConfig.model_fields.get(name)
        described = (model.description or "") if model else "Where an editor finds the schema of this file."
        registry._add_field(
            type(pattern)(
                name=name,
                arg_name=None if name == SCHEMA_KEY else f"--{name}",
                ui_label=name if name != SCHEMA_KEY else "JSON schema",
                field_type=type(pattern.field_type).TEXT_JSON,
                tab=TAB,
                section=SECTIONS.get(name, OLDER),
                default_value=None,
                help_text=described.replace("`", ""),
                tooltip=f"GH200: {described}".replace("`", ""),
                importance=type(pattern.importance).ADVANCED,
                order=order,
            )
        )
