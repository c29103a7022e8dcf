"""Upstream's functions that our code repeats, replaces, wraps or bypasses (`stands_for`), and a digest of each."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ..engine.files import condition_holds
from ..engine.fingerprint import digest
from ..engine.nearest import missing_file, missing_scope
from ..engine.plan import EditResult
from ..patches.patchmodel import Patch
from ..syntax.nodes import FUNCTIONS, deep_trees, dump
from ..syntax.source import Source, Unreadable, read_source
from ..syntax.tree import Tree
from .modules import defined_in, dotted

LOGGERS = frozenset({"log", "logger", "logging"})


@dataclass(frozen=True)
class Body:
    """A declared function; `ours` names the entries that declare it, each with its reason."""

    file: str
    scope: str
    ours: str
    line: int = 0
    digest: str = ""
    problem: str = ""

    @property
    def key(self) -> str:
        return f"{self.file}#{self.scope}"


@deep_trees()
def find_bodies(patches: Sequence[Patch], results: Sequence[EditResult], tree: Tree) -> tuple[Body, ...]:
    """What the expectations of `patches` and the edits of `results` stand for in this upstream."""
    ours: dict[tuple[str, str], list[str]] = {}
    for file, scopes, entry in (*_of_edits(results), *_of_expectations(patches, tree)):
        for scope in scopes:
            ours.setdefault((file, scope), []).append(entry)
    return tuple(_body(file, scope, "; ".join(entries), tree) for (file, scope), entries in ours.items())


def _of_edits(results: Sequence[EditResult]) -> Iterator[tuple[str, tuple[str, ...], str]]:
    for result in results:
        if result.status in ("applied", "already"):
            yield result.form.file, result.form.stands_for, f"edit {result.edit.key} ({result.edit.why})"


def _of_expectations(patches: Sequence[Patch], tree: Tree) -> Iterator[tuple[str, tuple[str, ...], str]]:
    for patch in patches:
        for item in patch.expects:
            if item.stands_for and condition_holds(item.only_if, item.file, tree):
                yield item.file, item.stands_for, f"{patch.path.name}, expect {item.name} ({item.why})"


def _body(file: str, scope: str, ours: str, tree: Tree) -> Body:
    try:
        source = _source(file, scope, tree)
        if source is None:
            return Body(file, scope, ours, problem=missing_file(file, tree))
        if scope not in source.scopes:
            return Body(file, scope, ours, problem=missing_scope(scope, source))
    except Unreadable as error:
        return Body(file, scope, ours, problem=f"{file}: {error}")
    parts = _with_called(source, scope)
    text = "\n".join(f"{name} {dump(node)}" for name in sorted(parts) for node in parts[name])
    return Body(file, scope, ours, line=getattr(parts[scope][0], "lineno", 1), digest=digest(text))


def text_of(body: Body, tree: Tree) -> list[str]:
    """The function and those it calls, as lines to compare by eye; empty if this tree has no such function."""
    source = _source(body.file, body.scope, tree)
    parts = _with_called(source, body.scope) if source and body.scope in source.scopes else {}
    return [line for name in sorted(parts) for node in parts[name] for line in ast.unparse(node).splitlines()]


def _source(file: str, scope: str, tree: Tree) -> Source | None:
    """The declared file, or the one that a shim in it takes the name from."""
    data = tree.read(file)
    if data is None:
        return None
    source = _normal(file, data)
    path = file if scope in source.scopes else defined_in(file, scope, tree)
    return source if path == file else _normal(path, tree.read(path) or b"")


def _with_called(source: Source, scope: str) -> dict[str, list[ast.stmt]]:
    """The scope and every function of the same file that it mentions, by name: a callback counts as called."""
    found: dict[str, list[ast.stmt]] = {}
    todo = [scope]
    while todo:
        name = todo.pop()
        if name not in found:
            found[name] = [place.node for place in source.scopes[name] if isinstance(place.node, ast.stmt)]
            todo += (called for node in found[name] for called in _called(source, name, node))
    return found


def _called(source: Source, scope: str, node: ast.stmt) -> Iterator[str]:
    owner = _owner(source, scope)
    for part in ast.walk(node):
        match part:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name) if owner:
                yield from _method(source, owner, name)
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name) if owner:
                yield from _inherited(source, owner, name)
            case ast.Name() | ast.Attribute() if _is_function(source, name := ".".join(dotted(part))):
                yield name


def _is_function(source: Source, name: str) -> bool:
    return any(isinstance(place.node, FUNCTIONS) for place in source.scopes.get(name, ()))


def _owner(source: Source, scope: str) -> str:
    """The innermost class around a scope, or the scope itself."""
    while scope and not isinstance(source.scopes[scope][0].node, ast.ClassDef):
        scope = scope.rpartition(".")[0]
    return scope


def _method(source: Source, owner: str, name: str) -> Iterator[str]:
    if _is_function(source, f"{owner}.{name}"):
        yield f"{owner}.{name}"
    else:
        yield from _inherited(source, owner, name)


def _inherited(source: Source, owner: str, name: str) -> Iterator[str]:
    for place in source.scopes[owner]:
        for base in getattr(place.node, "bases", ()):
            above = ".".join(dotted(base))
            if above in source.scopes and above != owner:
                yield from _method(source, above, name)


@lru_cache(maxsize=8)
def _normal(file: str, data: bytes) -> Source:
    source = read_source(file, data).reparsed()
    _Normalise().visit(source.tree)
    return source


class _Normalise(ast.NodeTransformer):
    """Takes out what changes nothing: docstrings, annotations, the text of log messages."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if isinstance(node, ast.arg | ast.FunctionDef | ast.AsyncFunctionDef):
            setattr(node, "annotation" if isinstance(node, ast.arg) else "returns", None)
        if getattr(node, "body", None) == [] and not isinstance(node, ast.Module):
            node.body = [ast.Pass()]  # type: ignore[attr-defined]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        if node.value is None:
            node.annotation = ast.Constant(None)
            return node
        return ast.copy_location(ast.Assign([node.target], node.value), node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return None
        if isinstance(node.value, ast.Call) and LOGGERS & set(dotted(node.value.func)[:-1]):
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    part.value = ""
        return self.generic_visit(node)
