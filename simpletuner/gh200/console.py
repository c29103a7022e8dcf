"""What an operator sees of a run with GH200 settings: each line says its rank once, and the bar keeps the loss in sight."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import MutableMapping
from typing import Any

from tqdm import tqdm

LEVEL = "SIMPLETUNER_LOG_LEVEL"
OURS = ("accum", "eff_batch")
_RANK = re.compile(r"^\[RANK \d+\] ")
# Upstream's own bar, then what is left of it in a narrow terminal.
_WHOLE = "{l_bar}{r_bar}"
_NARROW = (
    "{desc}{percentage:.0f}% {n_fmt}/{total_fmt} <{remaining}{postfix}",
    "{percentage:.0f}% {n_fmt}/{total_fmt} <{remaining}{postfix}",
    "{n_fmt}/{total_fmt}{postfix}",
)
_LEAST_BAR = 4


class _Tidy(logging.Filter):
    """On upstream's handlers, whose formatters put the rank first."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self._least = least

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.msg, str):
            # Accelerate's loggers have said it already.
            record.msg = _RANK.sub("", record.msg)
        return record.levelno >= self._least


def tidy_console() -> None:
    """Once per handler. SIMPLETUNER_LOG_LEVEL holds for the console: upstream sets it to INFO after reading it."""
    asked = logging.getLevelNamesMapping().get(os.environ.get(LEVEL, "").upper(), logging.NOTSET)
    for handler in logging.getLogger().handlers:
        if not any(isinstance(found, _Tidy) for found in handler.filters):
            on_screen = getattr(handler, "stream", None) in (sys.stdout, sys.stderr)
            handler.addFilter(_Tidy(asked if on_screen else logging.NOTSET))


def fit_bar(values: MutableMapping[str, Any]) -> None:
    """Upstream's bar shows its values by the alphabet and cuts what does not fit, so that the loss goes first."""
    for bar in list(tqdm._instances):
        if bar.disable or not str(bar.desc).startswith("Epoch"):
            continue
        columns = bar.dynamic_ncols(bar.fp)[0] if callable(bar.dynamic_ncols) else bar.ncols
        if columns:
            _fit(bar, columns, values)


def _fit(bar: Any, columns: int, values: MutableMapping[str, Any]) -> None:
    postfix = ", ".join(f"{name}={_number(value)}" for name, value in sorted(values.items()))
    # What upstream adds after us was in the last one.
    postfix = max(postfix, bar.postfix or "", key=len)

    def length(form: str) -> int:
        return len(tqdm.format_meter(**{**bar.format_dict, "bar_format": form, "ncols": None, "postfix": postfix}))

    if length(_WHOLE) + _LEAST_BAR <= columns:
        bar.bar_format = None
        return
    bar.bar_format = next((form for form in _NARROW if length(form) <= columns), _NARROW[-1])
    if length(bar.bar_format) > columns:
        for name in OURS:
            values.pop(name, None)


def _number(value: Any) -> str:
    return str(tqdm.format_num(value)) if isinstance(value, (int, float)) else str(value)
