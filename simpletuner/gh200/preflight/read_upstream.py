"""Writes what upstream's own parser and model classes accept as JSON; run as a file, in the fork, once per release.

It imports all of upstream, which takes half a minute, so nothing else does: `upstream.py` reads what this leaves.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

Record = dict[str, Any]
_TYPES: dict[Any, str] = {int: "int", float: "float", str: "text", None: "text"}
# Upstream turns these into JSON text itself; other nested values never reach its parser.
_JSON_KEYS = [
    "deepspeed_config",
    "distillation_config",
    "peft_lora_target_modules",
    "publishing_config",
    "webhook_config",
]


def keys_of(parser: argparse.ArgumentParser) -> dict[str, Record]:
    """Every option of the parser, by the name it stores under."""
    found: dict[str, Record] = {}
    for action in parser._actions:
        if not action.option_strings or action.dest == "help":
            continue
        flag = action.nargs == "?" and action.const is True
        found[action.dest] = {
            "options": [option.lstrip("-") for option in action.option_strings],
            "type": "bool" if flag else _TYPES.get(action.type, "other"),
            "choices": [str(choice) for choice in action.choices] if action.choices else None,
            "required": bool(action.required),
            "default": action.default if isinstance(action.default, (bool, int, float, str, type(None))) else None,
        }
    return found


def family_of(model: Any) -> Record:
    """What preflight has to know of one model class."""
    vae = getattr(model, "AUTOENCODER_CLASS", None)
    pipelines = getattr(model, "PIPELINE_CLASSES", None) or {}
    return {
        "default_flavour": getattr(model, "DEFAULT_MODEL_FLAVOUR", None),
        "models": {str(k): str(v) for k, v in (getattr(model, "HUGGINGFACE_PATHS", None) or {}).items()},
        "vae_class": getattr(vae, "__name__", None),
        "subfolder": getattr(model, "MODEL_SUBFOLDER", None),
        "pipelines": sorted({pipeline.__name__ for pipeline in pipelines.values() if hasattr(pipeline, "__name__")}),
    }


def read() -> Record:
    """Keys, defaults and model families of this upstream."""
    from simpletuner.gh200.config.keys import BLOCK_KEYS
    from simpletuner.helpers.configuration.cli_utils import _LEGACY_ARG_HANDLERS
    from simpletuner.helpers.configuration.cmd_args import get_argument_parser
    from simpletuner.helpers.training.optimizer_param import optimizer_choices

    keys = {name: key for name, key in keys_of(get_argument_parser()).items() if name not in BLOCK_KEYS}
    for name, choices in (("optimizer", sorted(optimizer_choices)), ("report_to", _trackers())):
        if name in keys and choices and not keys[name]["choices"]:
            keys[name]["choices"] = choices
    services: Any = importlib.import_module("simpletuner.simpletuner_sdk.server.services.field_registry")
    fields = services.field_registry._fields
    unparsed = {name for name, field in fields.items() if not field.arg_name} - set(keys)
    nested = {name for name, field in fields.items() if field.field_type.value == "text_json"}
    return {
        "keys": keys,
        "ignored": sorted(unparsed | set(_LEGACY_ARG_HANDLERS)),
        "nested": sorted(nested | set(_JSON_KEYS)),
        "optimizer_precision": {
            name: str((details or {}).get("precision", "any")) for name, details in optimizer_choices.items()
        },
        "families": _families(),
    }


def _trackers() -> list[str]:
    try:
        from simpletuner.helpers.training.reporting import REPORT_TO_CHOICES
    except ImportError:
        return []  # an older release has no list of them
    return list(REPORT_TO_CHOICES)


def _families() -> dict[str, Record]:
    import simpletuner.helpers.models.all  # noqa: F401
    from simpletuner.helpers.models.registry import ModelRegistry

    found: dict[str, Record] = {}
    for name, model in ModelRegistry.model_families().items():
        try:
            found[name] = family_of(model)
        except Exception as error:  # one model whose package is missing must not cost all the others
            print(f"{name}: {error}", file=sys.stderr)
    return found


def main(target: Path) -> None:
    """Writes the record to the file."""
    from simpletuner.gh200.files import write_whole

    text = json.dumps(read(), indent=1, sort_keys=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
