"""Our keys as fields of upstream's registry: known to its pages and its search, unknown to its command line."""

from __future__ import annotations

from typing import Any

from ..settings.keys import SCHEMA_KEY
from ..settings.schema import TrainingConfig
from .blocks import KEPT_KEYS

TAB = "gh200"
SECTIONS = {"cache_config": "caches", "gh200_optimizations": "optimizations", "datasets": "datasets"}
OLDER = "older_spellings"


def register(registry: Any) -> None:
    """Adds one field per key. Before 4.0.6 no field holds JSON: there the blocks are kept, and not shown."""
    pattern = next(iter(registry._fields.values()), None)
    json_type = getattr(type(pattern.field_type), "TEXT_JSON", None) if pattern is not None else None
    if pattern is None or json_type is None:
        return
    for order, name in enumerate(sorted(KEPT_KEYS, key=lambda name: (name not in SECTIONS, name))):
        model = TrainingConfig.model_fields.get(name)
        described = (model.description or "") if model else "Where an editor finds the schema of this file."
        registry._add_field(
            type(pattern)(
                name=name,
                arg_name=None,
                ui_label=name if name != SCHEMA_KEY else "JSON schema",
                field_type=json_type,
                tab=TAB,
                section=SECTIONS.get(name, OLDER),
                default_value=None,
                help_text=described.replace("`", ""),
                tooltip=f"GH200: {described}".replace("`", ""),
                importance=type(pattern.importance).ADVANCED,
                order=order,
            )
        )
