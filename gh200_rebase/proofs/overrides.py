"""Methods of the overlay that take the place of upstream's on an object of a run, and the entry that declares each."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from ..patches.patchmodel import Expect, Patch
from ..syntax.source import read_source
from ..syntax.tree import Tree
from .modules import module_name
from .signatures import methods

PACKAGE = "simpletuner/gh200/"
MARKS = frozenset({"override", "override_if_present"})
ELSEWHERE = frozenset({"Accelerator", "GeneralTracker", "Optimizer"})
"""Classes of torch and Accelerate: their functions are in no upstream, so nothing declares them."""


@dataclass(frozen=True)
class Override:
    """`ours` is module.Class within the package; `about` is the first line of the class's docstring."""

    ours: str
    upstream_class: str
    method: str
    about: str

    def declared_by(self, patches: Sequence[Patch]) -> tuple[int, Expect] | None:
        """The patch and its expectation, best one of this very method; the class may be a base of the one ours is put on."""
        found = [
            (patch.number, item)
            for patch in patches
            for item in patch.expects
            if self.method in (scope.rpartition(".")[2] for scope in item.stands_for)
        ]
        exact = [pair for pair in found if pair[1].name.rpartition(".")[2] == self.method]
        return next(iter((*exact, *found)), None)


def overrides(overlay: Tree) -> list[Override]:
    """All that are marked, sorted by the place of ours."""
    found = []
    for path in overlay.paths():
        if path.startswith(PACKAGE) and path.endswith(".py"):
            module = module_name(path.removeprefix(PACKAGE))
            for node in ast.walk(read_source(path, overlay.read(path) or b"").tree):
                if isinstance(node, ast.ClassDef):
                    found += _of_class(f"{module}.{node.name}", node)
    return sorted(found, key=lambda override: (override.ours, override.method))


def _of_class(ours: str, node: ast.ClassDef) -> list[Override]:
    about = (ast.get_docstring(node) or "").partition("\n")[0].rstrip(".")
    return [
        Override(ours, _upstream_class(node), name, about)
        for name, method in methods(node).items()
        if MARKS & {ast.unparse(mark) for mark in method.decorator_list}
    ]


def _upstream_class(node: ast.ClassDef) -> str:
    """`upstream_class = "Trainer"` of the class body, also as one of several names."""
    for item in (item for item in node.body if isinstance(item, ast.Assign)):
        names, values = (getattr(part, "elts", [part]) for part in (item.targets[0], item.value))
        for name, value in zip(names, values, strict=False):
            if ast.unparse(name) == "upstream_class" and isinstance(value, ast.Constant):
                return str(value.value)
    return ""
