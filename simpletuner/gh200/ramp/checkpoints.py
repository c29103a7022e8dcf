"""Whether a checkpoint directory was written to its end. A kill during a save leaves one that `latest` would take."""

from __future__ import annotations

import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from ..files import write_whole

# Accelerate writes the generators last; upstream its own state before that.
_NEEDED = ("random_states_0.pkl", "training_state.json")
_SHARDS_LIST = ".metadata"
CLOSING = "gh200_checkpoint.json"
_MANAGER = "simpletuner.helpers.utils.checkpoint_manager"
_RANK_STATE = re.compile(r"training_state-rank(\d+)\.json")


def incompleteness(checkpoint: Path) -> str:
    """What is missing or cut short, or nothing."""
    needed = [*_NEEDED, *_closing(checkpoint)]
    absent = [name for name in needed if not (checkpoint / name).is_file()]
    if absent:
        return f"{', '.join(absent)} not there"
    for path in sorted(checkpoint.iterdir()):
        if path.is_file() and not _whole(path):
            return f"{path.name} is cut short"
        if path.is_dir() and _shards_without_list(path):
            return f"{path.name}/{_SHARDS_LIST} not there"
    return _missing_rank(checkpoint)


def record_last_file(checkpoint: Path) -> None:
    """From 4.3.2 on upstream lists a checkpoint's files when all are written. Older ones, and their checkpoints, have no list."""
    manager: Any = sys.modules.get(_MANAGER)
    if hasattr(manager, "CHECKPOINT_GUARD_FILENAME") and hasattr(manager, "CHECKPOINT_MANIFEST_FILENAME"):
        record = {"closed_by": manager.CHECKPOINT_MANIFEST_FILENAME}
        write_whole(checkpoint / CLOSING, json.dumps(record) + "\n")


def _closing(checkpoint: Path) -> list[str]:
    try:
        return [str(json.loads((checkpoint / CLOSING).read_text(encoding="utf-8"))["closed_by"])]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _shards_without_list(directory: Path) -> bool:
    """The list of what lies in which shard is written when all ranks have written theirs."""
    return any(directory.glob("*.distcp")) and not (directory / _SHARDS_LIST).is_file()


def _missing_rank(checkpoint: Path) -> str:
    """Every further rank writes two files, its generators after its state. Datasets have files of such names too."""
    for path in sorted(checkpoint.iterdir()):
        rank = _RANK_STATE.fullmatch(path.name)
        generators = f"random_states_{rank[1]}.pkl" if rank else ""
        if rank and "global_step" in path.read_text(encoding="utf-8") and not (checkpoint / generators).is_file():
            return f"{generators} not there"
    return ""


def _whole(path: Path) -> bool:
    """Whether the file ends where its own header says."""
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt"):
                pass
        elif path.suffix == ".json":
            json.loads(path.read_text(encoding="utf-8"))
    except (SafetensorError, ValueError):
        return False
    return path.suffix not in {".bin", ".pkl", ".pt", ".pth"} or zipfile.is_zipfile(path)


def complete_before(output_dir: Path, latest: str) -> tuple[str | None, dict[str, str]]:
    """The newest complete checkpoint, from `latest` down, and why each newer one was passed over."""
    passed: dict[str, str] = {}
    for name in _newest_first(output_dir, latest):
        reason = incompleteness(output_dir / name)
        if not reason:
            return name, passed
        passed[name] = reason
    return None, passed


def _newest_first(output_dir: Path, latest: str) -> list[str]:
    found = {path.name: _step(path.name) for path in output_dir.glob("checkpoint-*") if path.is_dir()}
    older = [name for name, step in found.items() if step is not None and name != latest and not name.endswith("tmp")]
    return [latest, *sorted(older, key=lambda name: (found[name] or 0, name), reverse=True)]


def _step(name: str) -> int | None:
    number = name.split("-")[1]
    return int(number) if number.isdigit() else None
