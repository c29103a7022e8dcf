"""All that is wrong with patch files, collected, and the checks that every table passes."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from .verbs import SCOPE_NAME


@dataclass
class Problems:
    """Collects sentences; `at` gives a view that prefixes them with a place."""

    place: str
    found: list[str] = field(default_factory=list)

    def at(self, place: str) -> Problems:
        """A view that prefixes a place."""
        return Problems(f"{self.place}: {place}", self.found)

    def add(self, text: str) -> None:
        """Add one sentence."""
        self.found.append(f"{self.place}: {text}")


def check_table(table: Any, keys: Mapping[str, tuple[type, bool]], problems: Problems) -> bool:
    """Check the keys and types of one table."""
    if not isinstance(table, dict):
        problems.add("must be a table")
        return False
    before = len(problems.found)
    for key, value in table.items():
        if key not in keys:
            near = difflib.get_close_matches(key, keys, n=1, cutoff=0.0)[0]
            problems.add(f"unknown key {key!r}; did you mean {near!r}?")
        elif not isinstance(value, keys[key][0]) or (isinstance(value, bool) and keys[key][0] is not bool):
            problems.add(f"{key} must be of type {keys[key][0].__name__}")
        elif keys[key][1] and value == "":
            problems.add(f"{key} is empty")
    for key in (key for key, (_, required) in keys.items() if required and key not in table):
        problems.add(f"key {key!r} is missing")
    return len(problems.found) == before


def one_of(value: str, allowed: Sequence[str], key: str, problems: Problems) -> bool:
    """Check a value against the allowed ones."""
    if value not in allowed:
        problems.add(f"{key} {value!r} must be one of {', '.join(allowed)}")
    return value in allowed


def check_only_if(text: str, problems: Problems) -> None:
    """Check a condition: a dotted name or exists:PATH."""
    if text.startswith("exists:"):
        check_path(text.removeprefix("exists:"), "only_if", problems)
    elif text and not SCOPE_NAME.fullmatch(text):
        problems.add(f"only_if {text!r} is neither a dotted name nor exists:PATH")


def check_path(text: str, key: str, problems: Problems) -> None:
    """Check for a plain relative path."""
    path = PurePosixPath(text)
    if not text or path.is_absolute() or ".." in path.parts or "\\" in text or str(path) != text:
        problems.add(f"{key} {text!r} must be a plain relative path")


def check_strings(values: list[Any], key: str, problems: Problems) -> bool:
    """Check for a list of strings."""
    good = all(isinstance(value, str) for value in values)
    if not good:
        problems.add(f"{key} must be a list of strings")
    return good
