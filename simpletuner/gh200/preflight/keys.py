"""A config's keys against upstream's own parser: unknown names, types and choices, all at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..config.keys import DATASETS_FILE_KEY, INLINE_KEYS, SCHEMA_KEY, is_ours, plain_key
from ..config.problems import Problem, join_path, nearest, shown
from .impossible import FOREIGN
from .upstream_keys import Upstream

_TRUE = {"1", "true", "yes", "y", "on"}
_FALSE = {"0", "false", "no", "n", "off"}
# Upstream's own older names of values, translated before its parser sees them.
_OLDER_VALUES = {"lr_scheduler": {"cosine_with_warmup"}}
_WORDS = {"int": "a whole number", "float": "a number", "bool": "true or false"}
# Names of a dataset entry that decide what is trained; nearly one of these is a typo upstream ignores.
_DATASET_KEYS = (
    "instance_data_dir", "dataset_type", "caption_strategy", "instance_prompt", "metadata_backend", "repeats", "resolution",
    "resolution_type", "minimum_image_size", "maximum_image_size", "crop", "crop_style", "crop_aspect",
    "crop_aspect_buckets", "cache_dir_vae", "cache_dir", "probability", "disabled", "disable", "train_batch_size",
)  # fmt: skip


def key_problems(config: Mapping[str, Any], upstream: Upstream) -> tuple[list[Problem], list[str]]:
    """Problems, and what an operator may not expect; keys of the fork's own are the settings' business."""
    problems: list[Problem] = []
    notes: list[str] = []
    options = {option: name for name, known in upstream.keys.items() for option in known["options"]}
    given: set[str] = set()
    for key, value in config.items():
        name = plain_key(key)
        if value is None or name == SCHEMA_KEY or is_ours(key, value) or name in upstream.ignored:
            continue
        found = options.get(name) or options.get(name.replace("-", "_"))
        if found is None:
            longer = {options[option] for option in options if option.startswith(name)}
            if len(longer) != 1 or name in FOREIGN:
                theirs = (
                    f' SimpleTuner\'s name for it is "{FOREIGN[name]}"' if name in FOREIGN else nearest(name, options)
                )
                problems.append(Problem(name, f"no key of upstream's (value {shown(value)}).{theirs}"))
                continue
            found = longer.pop()
            notes.append(f'"{name}" is taken as the short form of "{found}"')
        given.add(found)
        problems += _value_problems(name, found, value, upstream)
    problems += _missing(given, config, upstream)
    return problems, notes


def _missing(given: set[str], config: Mapping[str, Any], upstream: Upstream) -> Iterator[Problem]:
    inline = any(config.get(key) is not None for key in INLINE_KEYS)
    for name, known in upstream.keys.items():
        if known["required"] and name not in given and not (name == DATASETS_FILE_KEY and inline):
            choices = known["choices"]
            allowed = f": one of {', '.join(choices)}" if choices and len(choices) < 8 else ""
            beside = ' (or "datasets" in this file)' if name == DATASETS_FILE_KEY else ""
            yield Problem(name, f"missing; upstream does not start without it{allowed}{beside}")


def _value_problems(name: str, found: str, value: object, upstream: Upstream) -> list[Problem]:
    """As upstream turns a value into an argument: lists one by one, true alone, false and nothing at all."""
    if found in upstream.nested and isinstance(value, (Mapping, list, tuple)):
        return []
    if isinstance(value, Mapping):
        return [
            Problem(name, "a block of keys, which upstream drops without a word; give it as JSON text or a file name")
        ]
    if isinstance(value, (list, tuple)):
        return [problem for item in value for problem in _value_problems(name, found, item, upstream)]
    known = upstream.keys[found]
    text = str(value).strip()
    if isinstance(value, str) and (not text or text.lower() == "false"):
        return []
    if value is True or text.lower() == "true":
        wanted = _wanted(known)
        return [] if known["type"] == "bool" else [Problem(name, f"must be {wanted}; got {shown(value)}")]
    if found == "report_to":
        return _tracker_problems(name, text, known["choices"] or ())
    if value is False:
        text = "false"
    if known["type"] == "bool" and found == "validation_prompt_library":
        return []
    if not _fits(text, known["type"]):
        return [Problem(name, f"must be {_wanted(known)}; got {shown(value)}")]
    if known["choices"] and text not in known["choices"] and text.lower() not in _OLDER_VALUES.get(found, ()):
        if found == "model_family" and text.lower() in known["choices"]:
            return []
        if known["type"] in ("int", "float") and float(text) in [float(choice) for choice in known["choices"]]:
            return []
        return [Problem(name, f"must be {_wanted(known)}; got {shown(value)}.{nearest(text, known['choices'])}")]
    return []


def _tracker_problems(name: str, text: str, choices: Any) -> list[Problem]:
    wrong = [word.strip() for word in text.split(",") if choices and word.strip() and word.strip() not in choices]
    if "all" in wrong:
        wrong.remove("all")
    return [Problem(name, f"{shown(word)} is no tracker.{nearest(word, choices)}") for word in wrong]


def _fits(text: str, kind: str) -> bool:
    try:
        if kind == "int":
            int(text)
        elif kind == "float":
            float(text)
    except ValueError:
        return False
    return kind != "bool" or text.lower() in _TRUE | _FALSE


def _wanted(known: Mapping[str, Any]) -> str:
    choices = known["choices"]
    if choices:
        return f"one of {', '.join(choices)}" if len(choices) <= 12 else f"one of {len(choices)} values"
    return _WORDS.get(known["type"], "text")


def combination_problems(config: Mapping[str, Any], upstream: Upstream) -> Iterator[Problem]:
    """Keys that are right alone and stop upstream together, after it has been loaded."""
    steps, written = number(config.get("max_train_steps")), config.get("num_train_epochs")
    epochs = number(upstream.default("num_train_epochs") if written is None else written) or 0
    if steps and epochs > 0 and written is None:
        yield Problem("max_train_steps", f'upstream also takes {epochs:g} epoch by default; add "num_train_epochs": 0')
    elif steps and epochs > 0:
        yield Problem("num_train_epochs", f"must be 0 beside max_train_steps {steps:g}; got {shown(written)}")
    if not steps and epochs <= 0:
        yield Problem("num_train_epochs", "0, and no max_train_steps: nothing would be trained")
    edge = number(config.get("validation_resolution"))
    if edge is not None and 2 <= edge < 128 and "deepfloyd" not in str(config.get("model_family", "")):
        text = f"{edge:g} is taken for megapixels by upstream and becomes {int(edge) * 1000} pixels an edge"
        yield Problem("validation_resolution", f'{text}; write "{edge:g}x{edge:g}"')
    optimizer = str(config.get("optimizer", ""))
    precision = str(config.get("mixed_precision", upstream.default("mixed_precision") or "bf16"))
    base = str(config.get("base_model_precision", "no_change"))
    if upstream.optimizer_precision.get(optimizer) == "bf16" and precision != "bf16" and base == "no_change":
        yield Problem("optimizer", f'{shown(optimizer)} needs "mixed_precision": "bf16"; got {shown(precision)}')


def dataset_key_problems(entries: list[Mapping[str, Any]], upstream: Upstream) -> Iterator[Problem]:
    """Only near misses: upstream ignores a key it does not know, and has many that are written down nowhere."""
    known = {*upstream.keys, *_DATASET_KEYS}
    for index, entry in enumerate(entries):
        for key in entry:
            hint = nearest(str(key), _DATASET_KEYS, 0.85)
            if str(key) not in known and hint:
                yield Problem(
                    join_path("datasets", index, key), f"no key of a dataset; upstream would ignore it.{hint}"
                )


def truth(value: object) -> bool:
    """A switch as upstream reads it, from a file or from a command line."""
    return value is True or str(value).strip().lower() in _TRUE


def number(value: object) -> float | None:
    """A number as upstream reads it; None for anything else."""
    try:
        return None if value is None or isinstance(value, bool) else float(str(value))
    except ValueError:
        return None
