"""Finds upstream's own test files for a set of modules: those that import one, or name it in a string (for a mock)."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from .upstream_trees import is_test, modules

# What mock.patch and import_module take. Two parts are too few: "simpletuner.json" is no module.
_TARGET = re.compile(r"simpletuner(\.\w+){2,}")


def all_test_files(tree: Path) -> list[str]:
    """All test files of a tree."""
    paths = (path.relative_to(tree).as_posix() for path in (tree / "tests").rglob("*.py"))
    return sorted(path for path in paths if is_test(path))


def files_testing(tree: Path, wanted: Collection[str]) -> list[str]:
    """Test files that use one of these modules directly."""
    known = modules(tree)
    return _where(tree, lambda text: any(_module(name, known) in wanted for name in _names(text)))


def files_saying(tree: Path, word: str) -> list[str]:
    """Test files that contain a word."""
    return _where(tree, lambda text: word in text)


def of_one_model(tree: Path, file: str) -> bool:
    """Named after a model, it is that model's test; it takes long, and uses the modules around it only as tools."""
    models = (path.name for path in (tree / "simpletuner" / "helpers" / "models").glob("*/"))
    name = Path(file).stem.removeprefix("test_")
    return any(f"{name}_".startswith(f"{model}_") for model in models)


def _where(tree: Path, fits: Callable[[str], bool]) -> list[str]:
    return [path for path in all_test_files(tree) if fits((tree / path).read_text(encoding="utf-8", errors="replace"))]


def _names(text: str) -> Iterator[str]:
    """Every dotted name an import or a string of this file could mean."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):
        return
    for node in nodes:
        match node:
            case ast.Import():
                yield from (name.name for name in node.names)
            case ast.ImportFrom(module=str(module), level=0):
                yield from (f"{module}.{name.name}" for name in node.names)
            case ast.Constant(value=str(value)) if _TARGET.fullmatch(value):
                yield value


def _module(name: str, known: Collection[str]) -> str:
    """The module a dotted name lies in: the longest beginning that is one. Empty if there is none."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name
