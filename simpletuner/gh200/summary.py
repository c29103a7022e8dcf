"""The block every run ends with: steps, loss, weights, report, model card, last checkpoint, and the line that resumes."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import GH200Error
from .preemption.launcher import VARIABLE as LAUNCHER
from .ramp.checkpoints import incompleteness
from .telemetry.reader import read_directory

STEPS = "gh200_steps.jsonl"
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_FILES = {"report": "training_report.html", "model card": "README.md"}


def loss_trend(losses: Sequence[float]) -> tuple[float, float] | None:
    """Mean loss of the first and of the last quarter of the steps."""
    quarter = max(1, len(losses) // 4)
    return (sum(losses[:quarter]) / quarter, sum(losses[-quarter:]) / quarter) if losses else None


def losses_by_step(output: Path) -> dict[int, float]:
    """From telemetry and the step log. Steps that were trained again after a resume count once."""
    found: dict[int, float] = {}
    try:
        records = read_directory(output).first.records
        found = {record.step: record.loss for record in records if record.loss is not None and record.step}
    except (GH200Error, OSError):
        pass
    try:
        for line in (output / STEPS).read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            if entry.get("kind") == "step":
                found[int(entry["step"])] = float(entry["loss"])
    except (OSError, ValueError):
        pass
    return dict(sorted(found.items()))


def last_checkpoint(output: Path) -> tuple[int, Path] | None:
    """The newest checkpoint that was written to its end."""
    named = ((_CHECKPOINT.fullmatch(path.name), path) for path in output.glob("checkpoint-*"))
    for step, path in sorted(((int(match[1]), path) for match, path in named if match), reverse=True):
        if not incompleteness(path):
            return step, path
    return None


def weights(output: Path) -> Path | None:
    """The trained weights, without those of checkpoints."""
    found = [
        *output.glob("*.safetensors"),
        *output.glob("[!c]*/*.safetensors"),
        *output.glob("controlnet/*.safetensors"),
    ]
    return min(found, default=None)


def is_finished(config: Mapping[str, Any], output: Path) -> bool:
    """Whether all steps were trained and the weights are there."""
    total = int(config.get("max_train_steps") or 0)
    checkpoint = last_checkpoint(output)
    done = max([*losses_by_step(output), checkpoint[0] if checkpoint else 0])
    return 0 < total <= done and weights(output) is not None


def resume_line(config: str, values: Mapping[str, Any], command: str = ".venv/bin/simpletuner") -> str:
    """The command that continues a job."""
    words = [command, "gh200", "train", config]
    return shlex.join(words if values.get("resume_from_checkpoint") else [*words, "--resume_from_checkpoint=latest"])


def end_block(output: Path, total: int, resume: str) -> list[str]:
    """Nothing where neither a step nor a checkpoint was made."""
    losses, checkpoint = losses_by_step(output), last_checkpoint(output)
    trend = loss_trend(list(losses.values()))
    if trend is None and checkpoint is None:
        return []
    done = max([*losses, checkpoint[0] if checkpoint else 0])
    rows = {"steps": f"{done} of {total}" if total else str(done)}
    if trend is not None:
        rows["loss"] = f"{trend[0]:.4f} -> {trend[1]:.4f} (mean of the first and of the last quarter of the steps)"
    made = {"weights": weights(output), **{name: output / file for name, file in _FILES.items()}}
    rows |= {name: _shown(path) for name, path in made.items() if path is not None and path.is_file()}
    rows["checkpoint"] = _shown(checkpoint[1]) if checkpoint else "none"
    rows["resume"] = resume
    return [f"{name:<11} {text}" for name, text in rows.items()]


def print_end_block(config: Any, path: Path | None) -> None:
    """By the first rank, at the end of a run that no launcher of ours watches."""
    if os.environ.get("RANK", "0") == "0" and LAUNCHER not in os.environ:
        resume = resume_line(_shown(path) if path else "CONFIG", vars(config))
        block = end_block(Path(config.output_dir), int(vars(config).get("max_train_steps") or 0), resume)
        print("\n".join(["", *block]), flush=True)


def _shown(path: Path) -> str:
    shown = os.path.relpath(path)
    return str(path) if shown.startswith("..") else shown
