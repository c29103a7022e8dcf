"""The quick start's own configs, moved into another directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..place import ROOT

Record = dict[str, Any]
SHIPPED = {"on": "config/quickstart.json", "off": "config/quickstart_off.json"}
MOVED = "build/quickstart"
# What the quick start shows of a run costs time, and nothing that is compared depends on it.
UNWATCHED: Record = {"report_to": "none", "validation_disable": True, "validation_on_startup": False}
UNIFIED = {"vae_cache_type": "unified_memory", "text_cache_type": "unified_memory"}


def moved_config(directory: Path, features: str = "on", **changes: Any) -> Record:
    """With its datasets in it, so that they can be changed; `write_config` puts them where the shipped config has them."""
    config: Record = _moved(SHIPPED[features], directory) | UNWATCHED
    if listed := config.get("data_backend_config"):
        config |= {"data_backend_config": str(directory / "datasets.json"), "datasets": _moved(listed, directory)}
    return config | changes


def write_config(config: Record, path: Path) -> Path:
    """Plain upstream wants the datasets in a file of their own."""
    written = dict(config)
    if listed := config.get("data_backend_config"):
        Path(listed).write_text(json.dumps(written.pop("datasets"), indent=1), encoding="utf-8")
    path.write_text(json.dumps(written, indent=1), encoding="utf-8")
    return path


def _moved(shipped: str, directory: Path) -> Any:
    text = (ROOT / shipped).read_text(encoding="utf-8")
    return json.loads(text.replace(f'"{MOVED}', json.dumps(str(directory)).removesuffix('"')))
