"""What a function uses of its own file: functions, constructors, constants, attributes of its class, imports."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator

from ..syntax.nodes import DEFS, FUNCTIONS, places
from ..syntax.source import Source
from .modules import Imported, bindings, dotted

LOGGERS = frozenset({"log", "logger", "logging"})
MAKERS = ("__init__", "__new__", "__post_init__")


class Uses:
    """One file. A name that is only mentioned counts as used: it may be called back."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._bound: dict[str, dict[str, list[ast.AST]]] = {}
        self._seen: dict[str, tuple[list[ast.AST], list[str]]] = {}

    def has(self, name: str) -> bool:
        """A function, a class or a value."""
        scope, _, last = name.rpartition(".")
        return name in self.source.scopes or last in self._names(scope)

    def of(self, scope: str) -> dict[str, list[ast.AST]]:
        """The scope and everything that it uses, by dotted name; each as the nodes to compare."""
        found: dict[str, list[ast.AST]] = {}
        todo = [scope]
        while todo:
            name = todo.pop()
            if name not in found:
                found[name], used = self._see(name)
                todo += used
        return found

    def _see(self, name: str) -> tuple[list[ast.AST], list[str]]:
        """One name: its nodes, and the names that they mention."""
        if name not in self._seen:
            normal = (_Normalise().visit(copy.deepcopy(node)) for node in self._nodes(name))
            nodes = [node for node in normal if node is not None]
            self._seen[name] = nodes, [used for node in nodes for used in self._mentioned(name, node)]
        return self._seen[name]

    def _nodes(self, name: str) -> Iterator[ast.AST]:
        for place in self.source.scopes.get(name, ()):
            if isinstance(place.node, ast.ClassDef):
                yield from (*place.node.decorator_list, *place.node.bases, *place.node.keywords)
                yield from (
                    part.node for part in places(place.node) if not part.chain and not isinstance(part.node, DEFS)
                )
            elif isinstance(place.node, ast.stmt):
                yield place.node
        scope, _, last = name.rpartition(".")
        yield from self._names(scope).get(last, ())
        yield from self._stored(scope, last)

    def _mentioned(self, scope: str, node: ast.AST) -> Iterator[str]:
        owner = self._owner(scope)
        parts = list(ast.walk(node))
        # `Table.limit` uses one attribute of the class, not the class.
        only_one = {id(part.value) for part in parts if isinstance(part, ast.Attribute)}
        for part in parts:
            match part:
                case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name) if owner:
                    yield from self._inherited(owner, name)
                case ast.Attribute(value=value, attr=name) if owner and _is_self(value):
                    yield from self._member(owner, name)
                case ast.Call(func=ast.Name(id="getattr"), args=[value, ast.Constant(value=str(name)), *_]) if (
                    owner and _is_self(value)
                ):
                    yield from self._member(owner, name)
                case ast.Call(func=value) if owner and _is_self(value):
                    yield from self._made(owner)
                case ast.Attribute(value=value, attr=name) if self._is_class(above := ".".join(dotted(value))):
                    yield from self._member(above, name)
                case ast.Name(id=name) if name not in LOGGERS and not (id(part) in only_one and self._is_class(name)):
                    yield from self._visible(scope, name)

    def _visible(self, scope: str, name: str) -> Iterator[str]:
        """What a bare name means: of an enclosing function, or of the module."""
        own = scope
        while True:
            full = f"{scope}.{name}" if scope else name
            if self._is_class(full):
                yield full
                yield from self._made(full)
                return
            if full in self.source.scopes or name in self._names(scope):
                # What a function binds itself is in its own text already.
                if scope != own or not scope or self._is_class(scope):
                    yield full
                return
            if not scope:
                return
            scope = scope.rpartition(".")[0]
            # A function does not see the names of the class around it; the value of a class attribute does.
            while self._is_class(scope) and own in self.source.scopes:
                scope = scope.rpartition(".")[0]

    def _made(self, owner: str) -> Iterator[str]:
        for name in MAKERS:
            yield from self._member(owner, name)

    def _member(self, owner: str, name: str) -> Iterator[str]:
        """A method, a class attribute, or an attribute that the constructor stores; own or inherited in this file."""
        full = f"{owner}.{name}"
        if full in self.source.scopes or name in self._names(owner) or self._stored(owner, name):
            yield full
        if full not in self.source.scopes:
            yield from self._inherited(owner, name)

    def _inherited(self, owner: str, name: str) -> Iterator[str]:
        for place in self.source.scopes[owner]:
            for base in getattr(place.node, "bases", ()):
                above = ".".join(dotted(base))
                if above != owner and self._is_class(above):
                    yield from self._member(above, name)

    def _is_class(self, name: str) -> bool:
        return any(isinstance(place.node, ast.ClassDef) for place in self.source.scopes.get(name, ()))

    def _owner(self, scope: str) -> str:
        """The innermost class around a scope, or the scope itself."""
        while scope and not self._is_class(scope):
            scope = scope.rpartition(".")[0]
        return scope

    def _stored(self, owner: str, name: str) -> list[ast.AST]:
        """The statements of a constructor that store an attribute."""
        made = self.source.scopes.get(f"{owner}.__init__", ()) if self._is_class(owner) else ()
        return [
            place.node
            for maker in made
            for place in places(maker.node)
            if any(dotted(part) == ["self", name] for target in _targets(place.node) for part in ast.walk(target))
        ]

    def _names(self, scope: str) -> dict[str, list[ast.AST]]:
        """What the body of a scope binds, each name with the statements that do; definitions are scopes."""
        if scope not in self._bound:
            found: dict[str, list[ast.AST]] = {}
            for owner in self.source.scopes.get(scope, ()):
                is_function = isinstance(owner.node, FUNCTIONS)
                found |= {name: [] for name in (_parameters(owner.node) if is_function else ())}
                for place in places(owner.node):
                    # Outside of functions a value may depend on the condition, or the failure, around it.
                    node = place.around[0].node if place.around and not is_function else place.node
                    for name, meaning in bindings(self.source.path, place.node):
                        if not isinstance(meaning, ast.AST):
                            found.setdefault(name, []).append(_import(name, meaning) if meaning else node)
                    for name in _changed(place.node):
                        if not isinstance(next(iter(found.get(name, ())), None), ast.Import | ast.ImportFrom):
                            found.setdefault(name, []).append(node)
                for name in _global_names(owner.node) if is_function else ():
                    found.pop(name, None)
            self._bound[scope] = found
        return self._bound[scope]


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign | ast.Delete):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign | ast.AugAssign) else []


def _changed(node: ast.AST) -> Iterator[str]:
    """`TABLE` in `TABLE["key"] = ...`, `TABLE.key = ...` and `TABLE.update(...)`."""
    called = node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
    for target in (*_targets(node), called):
        if isinstance(target, ast.Subscript | ast.Attribute) and isinstance(target.value, ast.Name):
            yield target.value.id


def _import(name: str, meaning: Imported) -> ast.AST:
    """One line for one name, the same for a relative import."""
    alias = ast.alias(meaning.name or meaning.module, name)
    return ast.ImportFrom(meaning.module, [alias], 0) if meaning.name else ast.Import([alias])


def _parameters(node: ast.AST) -> list[str]:
    return [part.arg for part in ast.walk(node.args) if isinstance(part, ast.arg)]  # type: ignore[attr-defined]


def _global_names(node: ast.AST) -> list[str]:
    found = (part for part in ast.walk(node) if isinstance(part, ast.Global | ast.Nonlocal))
    return [name for part in found for name in part.names]


def _is_self(node: ast.AST) -> bool:
    """`self`, `cls`, `self.__class__` or `type(self)`."""
    match node:
        case ast.Name(id="self" | "cls") | ast.Attribute(value=ast.Name(id="self"), attr="__class__"):
            return True
        case ast.Call(func=ast.Name(id="type"), args=[ast.Name(id="self")]):
            return True
    return False


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
