"""The patch surface as the two trees show it, without a look at the patches: what the fork changes of upstream."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path
from typing import Any

_LEFT_OUT = ("gh200", "__pycache__")
# How a method of ours is marked that takes the place of one of upstream's on an object of a run.
_OVERRIDES = {"override", "override_if_present"}


def surface(pristine: Path, fork: Path) -> dict[str, int]:
    """Upstream's files that differ, hunks without context, lines; and the methods that are overridden at run time."""
    excluded = [f"--exclude={name}" for name in _LEFT_OUT]
    command = ["diff", "-r", "-U0", *excluded, str(pristine / "simpletuner"), str(fork / "simpletuner")]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    return {
        "files": sum(line.startswith("--- ") for line in lines),
        "hunks": sum(line.startswith("@@ ") for line in lines),
        "added": sum(line.startswith("+") and not line.startswith("+++ ") for line in lines),
        "removed": sum(line.startswith("-") and not line.startswith("--- ") for line in lines),
        "overrides": len(overrides(fork)),
    }


def overrides(fork: Path) -> list[str]:
    """`module.Class.method` of every method that is marked as an override."""
    package = fork / "simpletuner" / "gh200"
    found = []
    for path in sorted(package.rglob("*.py")):
        module = ".".join(path.relative_to(package).with_suffix("").parts)
        classes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
        found += [f"{module}.{kind.name}.{method}" for kind in classes for method in _overriding(kind)]
    return found


def _overriding(kind: ast.ClassDef) -> list[str]:
    methods: list[Any] = [node for node in kind.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [
        method.name
        for method in methods
        if any(isinstance(mark, ast.Name) and mark.id in _OVERRIDES for mark in method.decorator_list)
    ]
