"""What Validate and Run say about a config: upstream's verdict, and that of preflight."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..preflight.check import preflight
from ..preflight.start import asked_for
from ..settings.blocks import loaded_values
from ..settings.keys import is_ours, plain_key
from .blocks import BrokenBlock, parsed
from .live import processes_of


def judged(result: Any, store: Any, config: Any) -> Any:
    """Upstream's verdict on a form, and ours; upstream puts the texts into its page as they are."""
    errors, warnings = broken_blocks(config), []
    values = {} if errors else loaded_values(config)
    if asked_for(values):
        path = Path(store._get_config_path(store.get_active_config() or "default"))
        report = preflight(path, values, processes_of(values), keys=False, read=False)
        errors, warnings = report.problems, report.warnings
    result.errors += [html.escape(text, quote=False) for text in errors]
    result.warnings += [html.escape(text, quote=False) for text in warnings]
    return result


def broken_blocks(config: Mapping[str, Any]) -> list[str]:
    broken = []
    for key, value in config.items():
        if isinstance(value, str) and is_ours(key, value):
            try:
                parsed(plain_key(key), value)
            except BrokenBlock as error:
                broken.append(f"{error.what}: {error.why}")
    return broken
