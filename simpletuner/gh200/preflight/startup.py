"""Preflight where a training starts: with a key of the fork's in its config, and by the first rank of a machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config import arguments
from ..config.config_file import config_path
from ..config.keys import DATASETS_FILE_KEY, INLINE_KEYS, is_ours
from ..errors import GH200Error, stop
from ..preemption.launcher import watch_launcher
from ..state import StateHooks
from .check import preflight
from .output_lock import claim_output
from .report import PreflightError

_SWITCH = ("gh200_optimizations", "preflight")


def asked_for(config: Mapping[str, Any]) -> bool:
    """A key of ours, and not switched off. One process looks: the launcher ends the others when it stops."""
    if os.environ.get("LOCAL_RANK", "0") != "0" or not any(
        is_ours(key, value) for key, value in config.items() if value is not None
    ):
        return False
    return not switched_off(config)


def switched_off(config: Mapping[str, Any]) -> bool:
    """Whether the config turns preflight off."""
    block = config.get(_SWITCH[0])
    return isinstance(block, Mapping) and str(block.get(_SWITCH[1], True)).lower() in ("false", "0", "no", "off")


def take_config_flag() -> None:
    """`train.py --config FILE`, checked and made the command line of this process; it ends when its launcher does."""
    if {"-h", "--help"} & set(sys.argv):
        return
    watch_launcher()
    try:
        check_command_line(sys.argv[1:])
        arguments.take_config_flag()
    except GH200Error as error:
        stop(error)


def check_command_line(argv: list[str]) -> None:
    """Before upstream parses a file named with --config: its own parser reports one wrong key, after half a minute."""
    path, config = config_path(argv), arguments.command_line_values(argv)
    if path is None or not asked_for(config):
        return
    report = preflight(path, config, _processes(), read=False)
    if report.problems:
        raise PreflightError(report)
    # The run itself locks it later; here a second one is rejected before it has loaded anything.
    claim_output(config.get("output_dir"), os.environ)
    for line in (*report.warnings, *report.not_checked):
        print(f"preflight: {line}", file=sys.stderr, flush=True)


def check_run(raw: Mapping[str, Any], dataset_file: object, origin: str) -> None:
    """A run that came another way: upstream has accepted its keys, and said which file has the datasets."""
    if StateHooks.get_config_file()[0] is not None or not asked_for(raw):
        return
    if not any(raw.get(key) is not None for key in INLINE_KEYS):
        if not dataset_file:
            return
        raw = {**raw, DATASETS_FILE_KEY: dataset_file}
    report = preflight(Path(origin), raw, _processes(), keys=False, read=False)
    if report.problems:
        raise PreflightError(report)


def _processes() -> int:
    text = os.environ.get("WORLD_SIZE", "1")
    return max(1, int(text)) if text.isdigit() else 1
