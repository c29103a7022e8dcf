"""The fork's environment variables judged without pydantic, for an interpreter that has only its own library."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import get_args

from ..settings.cache_options import AccessPattern
from ..settings.problems import nearest

SWITCH_WORDS = frozenset({"1", "0", "true", "false", "yes", "no", "on", "off", "t", "f", "y", "n"})
PATTERNS = get_args(AccessPattern)
PREFIXES = ("GH200_UVM_", "SIMPLETUNER_GH200_")


def _above_zero(text: str) -> bool:
    try:
        return math.isfinite(float(text)) and float(text) > 0
    except ValueError:
        return False


# variable -> what a value must fulfil, and that in words; a test holds it together with the settings models
RULES: dict[str, tuple[Callable[[str], bool], str]] = {
    "SIMPLETUNER_GH200_ENABLE_UVM_HINTS": (lambda text: text.lower() in SWITCH_WORDS, "true or false"),
    "GH200_UVM_OVERSUBSCRIPTION_RATIO": (_above_zero, "a number, above 0"),
    "GH200_UVM_ACCESS_PATTERN": (
        lambda text: text in PATTERNS,
        "one of " + ", ".join(f'"{name}"' for name in PATTERNS),
    ),
}


def plain_problems(environ: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Problems and notes, in the words the settings use."""
    problems = []
    for variable, (holds, words) in RULES.items():
        text = environ.get(variable, "").strip()
        if text and not holds(text):
            hint = nearest(text, PATTERNS) if variable.endswith("PATTERN") else ""
            problems.append(f'environment variable {variable}: must be {words}; got "{text}".{hint}')
    unknown = sorted(name for name in environ if name.startswith(PREFIXES) and name not in RULES)
    notes = [f"environment variable {name} is not one of ours.{nearest(name, RULES)}" for name in unknown]
    return tuple(problems), tuple(notes)
