"""Which names a place in a file can use."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable

from .nodes import DEFS, FUNCTIONS, own_nodes, places
from .source import Source


def unbound(source: Source, scope: str, names: Iterable[str]) -> set[str]:
    """Those of the names that neither the scope, nor what encloses it, nor Python binds."""
    left = set(names) - set(dir(builtins)) - {"__file__", "__name__"}
    parts = scope.split(".") if scope else []
    around = [".".join(parts[:end]) for end in range(len(parts), -1, -1)]
    for name in around:
        for place in source.scopes.get(name, ()):
            # A class's own names are not seen from its methods.
            if left and (name == scope or not isinstance(place.node, ast.ClassDef)):
                left -= bound_in(place.node)
    return left


def bound_in(scope: ast.AST) -> set[str]:
    """Parameters and everything the scope's own statements bind."""
    found: set[str] = set()
    if isinstance(scope, FUNCTIONS):
        found |= {part.arg for part in ast.walk(scope.args) if isinstance(part, ast.arg)}
    for place in places(scope):
        node = place.node
        if isinstance(node, DEFS):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        else:
            found |= {part.id for part in own_nodes(node) if isinstance(part, ast.Name) and _stores(part)}
        if isinstance(node, ast.Try):
            found |= {handler.name for handler in node.handlers if handler.name}
    return found


def _stores(part: ast.Name) -> bool:
    return isinstance(part.ctx, ast.Store)
