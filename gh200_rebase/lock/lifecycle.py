"""Whether what we added is still needed: the test of each patch, edit and workaround, on a pristine upstream."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..engine.resolve import has_pattern
from ..patches.patchmodel import HAS, Life, Patch
from ..project import Project
from ..syntax.nodes import deep_trees
from ..syntax.source import Unreadable, read_source
from ..syntax.tree import Tree

NEEDED, CAN_GO, UNTRIED, FAILED = "needed", "can go", "not tried", "failed"
_LIMIT = 600.0


@dataclass(frozen=True)
class Verdict:
    """What became of one `retire_when`: `detail` is what the test printed."""

    what: str
    life: Life
    result: str
    detail: str = ""


def lives(project: Project) -> Iterator[tuple[str, Life, Patch]]:
    """Every patch, edit and workaround that has a test of its own."""
    for patch in sorted(project.patches, key=lambda patch: patch.number):
        yield patch.name, patch.life, patch
        yield from ((edit.key, edit.life, patch) for edit in patch.edits if edit.life)
        yield from ((f"{patch.name}: {life.what}", life, patch) for life in patch.workarounds)


def judge(project: Project, tree: Tree, root: Path) -> list[Verdict]:
    """Run every test once; those with a script need the full environment."""
    known: dict[str, tuple[str, str]] = {}
    found = []
    for what, life, patch in lives(project):
        if life.retire_when.startswith(HAS):
            outcome = _searched(life.retire_when.removeprefix(HAS), what, patch, tree)
        elif life.retire_when:
            outcome = known.setdefault(life.retire_when, ("", ""))
            if not outcome[0]:
                outcome = known[life.retire_when] = _reproduced(project.root / life.retire_when, root)
        else:
            outcome = UNTRIED, "it has no retire_when"
        found.append(Verdict(what, life, *outcome))
    return found


@deep_trees()
def _searched(pattern: str, what: str, patch: Patch, tree: Tree) -> tuple[str, str]:
    """In the files that the edit or the patch touches; in all of the package where it touches none."""
    own = [edit.file for edit in patch.edits if what in (edit.key, patch.name)]
    everywhere = (path for path in tree.paths() if path.startswith("simpletuner/") and path.endswith(".py"))
    word = max(pattern.replace('"', " ").replace("(", " ").replace(")", " ").replace(".", " ").split(), key=len)
    for path in own or everywhere:
        data = tree.read(path) or b""
        try:
            if word.encode() in data and has_pattern(read_source(path, data), pattern):
                return CAN_GO, f"{path} has {pattern}"
        except Unreadable:
            continue
    return NEEDED, f"no {pattern}"


def _reproduced(script: Path, root: Path) -> tuple[str, str]:
    """The report's reproduction on the pristine tree: exit code 1 while the fault is there."""
    python = next((path for path in _pythons(script.parent.parent) if path.is_file()), Path(sys.executable))
    environment = {**os.environ, "PYTHONPATH": str(root), "HF_HUB_OFFLINE": "1", "SIMPLETUNER_LOG_LEVEL": "CRITICAL"}
    command = [str(python), str(script.with_name("reproduce.py")), script.stem]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_LIMIT)
    except (OSError, subprocess.TimeoutExpired) as error:
        return FAILED, str(error)
    lines = [line for line in done.stdout.splitlines() if line.startswith(f"{script.stem}: ")]
    if done.returncode not in (0, 1) or not lines:
        return FAILED, (done.stderr.strip().splitlines() or ["the script printed nothing"])[-1]
    printed = lines[-1].partition(": ")[2].removesuffix("\x1b[0m")
    if printed.startswith("cannot be tried here"):
        return UNTRIED, printed
    return (NEEDED if done.returncode else CAN_GO), printed


def _pythons(home: Path) -> Iterator[Path]:
    """The environment with torch: of this checkout, or of the one this fork was built in."""
    yield from (place / ".venv/bin/python" for place in (home, *home.parents[1:3]))
