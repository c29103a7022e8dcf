"""Facts about syntax trees that need no file: comparable dumps, blocks, scopes, statements."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

DEFS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
IGNORED = frozenset({"ctx", "kind", "type_comment", "type_ignores", "simple"})
BLOCK_FIELDS = frozenset({"body", "orelse", "finalbody", "handlers", "cases"})


@contextmanager
def deep_trees() -> Iterator[None]:
    """A recursion limit for a walk down a long `elif` chain, each link of which is a level of its own."""
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(max(usual, 50_000))
    try:
        yield
    finally:
        sys.setrecursionlimit(usual)


@dataclass(frozen=True)
class Place:
    """A statement (or the module), the block that contains it, and the chain of (owner, part) from the scope down."""

    node: ast.stmt | ast.Module
    block: list[ast.stmt]
    index: int
    chain: tuple[tuple[ast.AST, str], ...]
    around: tuple[Place, ...] = ()
    """The places of the chain's owners."""


def dump(node: object) -> str:
    """A text equal for equal code on every supported Python; `ast.dump` changes between versions."""
    # Plain loops here and in `same`: a comprehension inside a call would use up C's stack on deep trees.
    if isinstance(node, ast.AST):
        return _dump_fields(node, IGNORED)
    if isinstance(node, list):
        items = []
        for item in node:
            items.append(dump(item))
        return f"[{','.join(items)}]"
    return repr(node)


def header_dump(node: ast.AST) -> str:
    """Like `dump`, but a compound statement gives only its header."""
    is_compound = isinstance(getattr(node, "body", None), list) or isinstance(node, ast.Match)
    return _dump_fields(node, IGNORED | BLOCK_FIELDS) if is_compound else dump(node)


def _dump_fields(node: ast.AST, ignored: frozenset[str]) -> str:
    fields = []
    for name in node._fields:
        value = getattr(node, name, None)
        if name not in ignored and value is not None and value != []:
            fields.append(f"{name}={dump(value)}")
    return f"{type(node).__name__}({','.join(fields)})"


def same(left: object, right: object) -> bool:
    """Whether two nodes, or lists of nodes, are the same code."""
    if type(left) is not type(right):
        return False
    if isinstance(left, ast.AST):
        for name in left._fields:
            if name not in IGNORED and not same(getattr(left, name, None), getattr(right, name, None)):
                return False
        return True
    if isinstance(left, list) and isinstance(right, list):
        if len(left) != len(right):
            return False
        return all(same(one, other) for one, other in zip(left, right, strict=True))
    return left == right


def blocks(node: ast.AST) -> Iterator[tuple[str, list[ast.stmt]]]:
    """The statement lists of a compound statement, each with a name that says which part it is."""
    for name in ("body", "handlers", "orelse", "finalbody", "cases"):
        for item in _as_list(getattr(node, name, None)):
            if isinstance(item, ast.ExceptHandler):
                yield f"except {dump(item.type)} {item.name}", item.body
            elif isinstance(item, ast.match_case):
                yield f"case {dump(item.pattern)} {dump(item.guard)}", item.body
            else:
                yield name, getattr(node, name)
                break


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def places(scope: ast.AST) -> Iterator[Place]:
    """Every statement of the scope's own body, nested blocks included, nested defs and classes not entered."""
    yield from _places(scope.body, (), ())  # type: ignore[attr-defined]


def _places(
    block: list[ast.stmt], chain: tuple[tuple[ast.AST, str], ...], around: tuple[Place, ...]
) -> Iterator[Place]:
    for index, node in enumerate(block):
        place = Place(node, block, index, chain, around)
        yield place
        if not isinstance(node, DEFS):
            for part, inner in blocks(node):
                yield from _places(inner, (*chain, (node, part)), (*around, place))


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """What a statement evaluates itself, outermost first: no nested statements, defs or lambda bodies."""
    if isinstance(node, (*DEFS, ast.Lambda)):
        return
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt):
            yield child
            yield from own_nodes(child)


def expressions(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions a statement evaluates itself."""
    return (child for child in own_nodes(node) if isinstance(child, ast.expr))


def scopes(tree: ast.Module) -> dict[str, list[Place]]:
    """Dotted names of all classes and functions, also those inside `if` or `try`; a name may stand twice."""
    found = {"": [Place(tree, [], 0, ())]}

    def visit(scope: ast.AST, prefix: str) -> None:
        for place in places(scope):
            if isinstance(place.node, DEFS):
                name = prefix + place.node.name
                found.setdefault(name, []).append(place)
                visit(place.node, name + ".")

    visit(tree, "")
    return found
