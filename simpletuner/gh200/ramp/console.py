"""Lets the ramp's DEBUG lines through to the console: upstream holds its own console handler at INFO, always."""

from __future__ import annotations

import logging
import os
import sys

LEVEL = "SIMPLETUNER_LOG_LEVEL"


class _OnlyDebug(logging.StreamHandler):  # type: ignore[type-arg]
    def __init__(self) -> None:
        super().__init__(sys.stdout)
        self.setFormatter(logging.Formatter("%(asctime)s [%(levelname)s] %(message)s"))
        # From INFO up upstream's handler shows it.
        self.addFilter(lambda record: record.levelno < logging.INFO)


def show_debug_lines(logger: logging.Logger) -> None:
    """When the operator asks for DEBUG; once per process."""
    if os.environ.get(LEVEL, "").upper() != "DEBUG":
        return
    if not any(isinstance(handler, _OnlyDebug) for handler in logger.handlers):
        logger.addHandler(_OnlyDebug())
