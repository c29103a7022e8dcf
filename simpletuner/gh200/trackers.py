"""The one place where values of ours join those upstream gives its trackers after an optimizer step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# What the names of ours begin with.
PREFIX = "gh200/"


def each_step(accelerator: Any, use: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """`use` gets what upstream logs after an optimizer step, on every rank; what it returns goes to the trackers.

    The last one given is asked first, so that one who came earlier sees what later ones add.
    """
    original = accelerator.log

    def log(values: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        # Upstream logs other things through here too; only the training step's entry has this key.
        return original(use(values) if "train_loss" in values else values, *args, **kwargs)

    accelerator.log = log
