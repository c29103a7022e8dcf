"""What import-linter cannot ask by itself; pyproject.toml names it, so that `lint-imports` alone does all of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, cast

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output

from .checkout import see_this_checkout
from .place import ROOT

# The contracts are about what will be committed, not about the fork that was built from it some time ago.
see_this_checkout()


class ImportsAtTheTop(Contract):
    """Own modules are imported at the top of a file: an import inside a function hides a dependency from a reader."""

    packages = fields.ListField(subfield=fields.StringField())
    allowed = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """import-linter's entry point."""
        # import-linter puts the lists of the configuration in the place of these fields.
        packages, allowed = cast(list[str], self.packages), set(cast(list[str], self.allowed))
        hidden = [line for package in packages for line in _hidden(package, allowed)]
        return ContractCheck(kept=not hidden, metadata={"hidden": hidden})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """import-linter's entry point."""
        for line in check.metadata["hidden"]:
            output.print_error(line, bold=False)


def _hidden(package: str, allowed: set[str]) -> Iterator[str]:
    top = package.split(".")[0]
    for path in sorted((ROOT / package.replace(".", "/")).rglob("*.py")):
        shown = path.relative_to(ROOT)
        module = ".".join(shown.with_suffix("").parts)
        if module in allowed:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in (part for outer in ast.walk(tree) if _is_function(outer) for part in ast.walk(outer)):
            if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").split(".")[0] == top == package):
                yield f"{shown}:{node.lineno} imports {'.' * node.level}{node.module or ''} inside a function"


def _is_function(node: Any) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
