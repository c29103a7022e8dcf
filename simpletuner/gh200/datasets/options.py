"""The options of one in-memory dataset, as the staging code wants them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from ..errors import GH200Error
from .codecs import NAMES

_MOST_WORKERS = 72


@dataclass(frozen=True)
class StagingOptions:
    """Mirrors the `in_memory` block of a dataset; see docs/IN_MEMORY.md."""

    compression: str | None = None
    num_workers: int | None = None
    memory_limit_gb: float | None = None
    on_limit: str = "error"
    release_after_cache: bool = False

    @property
    def workers(self) -> int:
        return self.num_workers or min(_MOST_WORKERS, len(os.sched_getaffinity(0)))

    @classmethod
    def of(cls, block: object) -> StagingOptions:
        """From the block as a dict, from the checked settings object, or from nothing."""
        known = [field.name for field in fields(cls)]
        if block is None or isinstance(block, cls):
            return block or cls()
        given: dict[str, Any] = (
            dict(block) if isinstance(block, Mapping) else {key: getattr(block, key) for key in known}
        )
        given = {key: value for key, value in given.items() if value is not None}
        problems = [f"unknown key {key!r}" for key in given if key not in known]
        problems += [
            f"{key} is {given[key]!r}: {rule}"
            for key, (holds, rule) in _RULES.items()
            if key in given and not holds(given[key])
        ]
        if problems:
            raise GH200Error(
                "The in_memory block of a dataset cannot be used.",
                why="\n".join(problems),
                fix=f"keys: {', '.join(known)}",
            )
        return cls(**given)


_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "compression": (lambda value: value in NAMES, f"use one of {', '.join(NAMES)}"),
    "num_workers": (lambda value: type(value) is int and value > 0, "a whole number above 0"),
    "memory_limit_gb": (lambda value: type(value) in (int, float) and value > 0, "a number above 0"),
    "on_limit": (lambda value: value in ("error", "partial"), "use error or partial"),
    "release_after_cache": (lambda value: type(value) is bool, "true or false"),
}
