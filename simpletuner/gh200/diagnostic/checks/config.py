"""The check of a training config: what preflight says about it on this machine."""

from __future__ import annotations

from ..facts import Facts
from ..result import FAIL, PASS, SKIP, WARN, Result
from .declare import Group
from .software import USE_VENV

CONFIG = Group("config")


@CONFIG.check(
    FAIL, "Can this training work: settings, paths, datasets, model, buckets, memory, disk?",
    "correct what is named; python -m simpletuner.gh200.preflight CONFIG says the same in seconds",
)  # fmt: skip
def config_preflight(facts: Facts) -> Result:
    found = facts.preflight
    if found is None:
        return Result(SKIP, "no --config was given")
    if found.unasked:
        return Result(SKIP, found.unasked, USE_VENV)
    if found.problems:
        return Result(FAIL, "; ".join(found.problems))
    unknown = [f"not checked: {text}" for text in found.not_checked]
    if found.warnings:
        return Result(WARN, "; ".join((*found.warnings, *unknown)))
    return Result(PASS, "; ".join((*found.told, *found.notes, *unknown)) or "nothing speaks against it")
