"""What an operator sees of a run with GH200 settings: each line says its rank once, and the bar keeps the loss in sight."""

from __future__ import annotations

import logging
import os
import re
import sys
from typing import Any

from tqdm import tqdm

LEVEL = "SIMPLETUNER_LOG_LEVEL"
_RANK = re.compile(r"^\[RANK \d+\] ")
# Upstream's own bar, then what is left of it in a narrow terminal. What is still too long is cut at its right end.
_FORMS = (
    "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}{ours}]",
    "{desc}{percentage:.0f}% {n_fmt}/{total_fmt} <{remaining}{postfix}{ours}",
    "{percentage:.0f}% {n_fmt}/{total_fmt} <{remaining}{postfix}{ours}",
    "{n_fmt}/{total_fmt}{postfix}{ours}",
    "{n_fmt}/{total_fmt}{postfix}",
)
_FIRST_VALUES = "lr=1.23e-05, step_loss=0.123"


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


class _OnlyDebug(logging.StreamHandler):  # type: ignore[type-arg]
    def __init__(self) -> None:
        super().__init__(sys.stdout)
        self.setFormatter(logging.Formatter("%(asctime)s [%(levelname)s] %(message)s"))
        # From INFO up upstream's handler shows it.
        self.addFilter(lambda record: record.levelno < logging.INFO)


def show_debug_lines(logger: logging.Logger) -> None:
    """When the operator asks for DEBUG, once per process: upstream holds its own console handler at INFO, always."""
    if os.environ.get(LEVEL, "").upper() != "DEBUG":
        return
    if not any(isinstance(handler, _OnlyDebug) for handler in logger.handlers):
        logger.addHandler(_OnlyDebug())


def show_in_bar(**values: int) -> None:
    """These behind upstream's own values in its progress bar, whose form fits the terminal: loss and learning rate stay."""
    ours = "".join(f", {name}={value}" for name, value in values.items())
    for bar in list(tqdm._instances):
        if not bar.disable and str(bar.desc).startswith("Epoch"):
            bar.bar_format = _fitting(bar, [form.replace("{ours}", ours) for form in _FORMS])


def _fitting(bar: Any, forms: list[str]) -> str:
    state = bar.format_dict
    columns = state["ncols"]
    # Upstream's values come at the end of a micro-batch: the last one's are about as long.
    known = {**state, "ncols": None, "postfix": bar.postfix or _FIRST_VALUES}
    fitting = (form for form in forms if len(tqdm.format_meter(**{**known, "bar_format": form})) <= columns)
    return next(fitting, forms[-1]) if columns else forms[0]
