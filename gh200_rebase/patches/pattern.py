"""Anchors: Python with `...` for "anything", matched against syntax trees."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from ..syntax.nodes import IGNORED, Place, expressions, places

ANY_NAME = "__any_"
OPEN_TAILS = frozenset({"orelse", "finalbody", "handlers"})
SUBSET_FIELDS = frozenset({"items", "handlers", "names"})
UNSAID_FIELDS = frozenset({"decorator_list", "returns", "type_params", "optional_vars"})


class PatternError(ValueError):
    """An anchor that cannot be used."""


@dataclass(frozen=True)
class Pattern:
    """A parsed anchor; an expression pattern matches wherever the expression stands."""

    text: str
    node: ast.expr | ast.stmt

    @property
    def is_expression(self) -> bool:
        """Whether it matches expressions, not statements."""
        return isinstance(self.node, ast.expr)


@dataclass(frozen=True)
class Found:
    """A match: the statement that contains it, and the matched node itself."""

    place: Place
    node: ast.expr | ast.stmt | ast.Module


@lru_cache(maxsize=1024)
def compile_pattern(text: str) -> Pattern:
    """Parse an anchor; the message of the PatternError says what is wrong with it."""
    text = textwrap.dedent(text).strip()
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError) as error:
        raise PatternError(f"not Python: {error}") from None
    if len(body) != 1:
        raise PatternError(f"must be one statement or expression, has {len(body)} statements")
    node = body[0].value if isinstance(body[0], ast.Expr) else body[0]
    if is_hole(node):
        raise PatternError("`...` alone matches everything")
    return Pattern(text, node)


def find(pattern: Pattern, scope: ast.AST) -> Iterator[Found]:
    """All matches in a scope's own body, in source order."""
    for place in places(scope):
        if not pattern.is_expression:
            if matches(pattern.node, place.node):
                yield Found(place, place.node)
            continue
        for node in expressions(place.node):
            if matches(pattern.node, node):
                yield Found(place, node)


def is_hole(node: object) -> bool:
    """Whether a node is `...`."""
    return isinstance(node, ast.Constant) and node.value is ...


def _is_many(node: object) -> bool:
    return is_hole(node.value if isinstance(node, ast.Expr) else node)


def matches(pattern: object, node: object) -> bool:
    """Whether the pattern fits the node. Parts a pattern leaves out of a header may be anything."""
    if is_hole(pattern):
        return isinstance(node, ast.expr)
    if isinstance(pattern, list):
        return isinstance(node, list) and _sequence(pattern, node)
    if isinstance(pattern, str):
        return isinstance(node, str) and (pattern == node or pattern.startswith(ANY_NAME))
    if not isinstance(pattern, ast.AST):
        return pattern == node
    rule = _RULES.get(type(pattern), _plain)
    return rule(pattern, node)


def _plain(pattern: ast.AST, node: object) -> bool:
    return type(pattern) is type(node) and all(_field(pattern, node, name) for name in pattern._fields)


def _field(pattern: ast.AST, node: object, name: str) -> bool:
    wanted, present = getattr(pattern, name, None), getattr(node, name, None)
    if name in IGNORED or (name in UNSAID_FIELDS and not wanted):
        return True
    if name in OPEN_TAILS and not wanted and len(pattern.body) == 1 and _is_many(pattern.body[0]):  # type: ignore[attr-defined]
        return True
    if name in SUBSET_FIELDS and isinstance(wanted, list):
        return all(any(matches(item, other) for other in present or ()) for item in wanted)
    return matches(wanted, present)


def _sequence(patterns: list[object], nodes: list[object]) -> bool:
    if not patterns:
        return not nodes
    head, rest = patterns[0], patterns[1:]
    if _is_many(head):
        return any(_sequence(rest, nodes[start:]) for start in range(len(nodes) + 1))
    return bool(nodes) and matches(head, nodes[0]) and _sequence(rest, nodes[1:])


def _keywords(patterns: list[ast.keyword], nodes: list[ast.keyword], more: bool) -> bool:
    left = list(nodes)
    for wanted in patterns:
        hit = next((item for item in left if matches(wanted.arg, item.arg) and matches(wanted.value, item.value)), None)
        if hit is None:
            return False
        left.remove(hit)
    return more or not left


def _call(pattern: ast.Call, node: object) -> bool:
    return (
        isinstance(node, ast.Call)
        and matches(pattern.func, node.func)
        and _sequence(pattern.args, node.args)  # type: ignore[arg-type]
        and _keywords(pattern.keywords, node.keywords, any(map(is_hole, pattern.args)))
    )


def _constant(pattern: ast.Constant, node: object) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is type(pattern.value) and node.value == pattern.value


def _assign(pattern: ast.Assign, node: object) -> bool:
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        return matches(pattern.targets, [node.target]) and matches(pattern.value, node.value)
    return _plain(pattern, node)


def _set(pattern: ast.Set, node: object) -> bool:
    if len(pattern.elts) == 1 and is_hole(pattern.elts[0]):
        return isinstance(node, ast.Set | ast.Dict)
    return _plain(pattern, node)


def _dict(pattern: ast.Dict, node: object) -> bool:
    if not isinstance(node, ast.Dict):
        return False
    pairs = list(zip(pattern.keys, pattern.values, strict=True))
    wanted = [(key, value) for key, value in pairs if key is not None or not is_hole(value)]
    present = list(zip(node.keys, node.values, strict=True))

    def pair_fits(pair: tuple[object, object], other: tuple[object, object]) -> bool:
        return matches(pair[0], other[0]) and matches(pair[1], other[1])

    if len(wanted) < len(pairs):
        return all(any(pair_fits(pair, other) for other in present) for pair in wanted)
    return len(wanted) == len(present) and all(map(pair_fits, wanted, present))


def _function(pattern: ast.FunctionDef | ast.AsyncFunctionDef, node: object) -> bool:
    """A pattern cannot write "any parameters", so an empty list stands for it."""
    takes_any = not ast.unparse(pattern.args)
    fields = [name for name in pattern._fields if not (takes_any and name == "args")]
    return type(pattern) is type(node) and all(_field(pattern, node, name) for name in fields)


def _class(pattern: ast.ClassDef, node: object) -> bool:
    unsaid = {"bases", "keywords"} if not (pattern.bases or pattern.keywords) else {"keywords"}
    if not isinstance(node, ast.ClassDef) or not all(
        _field(pattern, node, name) for name in pattern._fields if name not in unsaid
    ):
        return False
    return "bases" in unsaid or _keywords(pattern.keywords, node.keywords, any(map(is_hole, pattern.bases)))


def _handler(pattern: ast.ExceptHandler, node: object) -> bool:
    fields = [name for name in pattern._fields if name != "name" or pattern.name]
    return isinstance(node, ast.ExceptHandler) and all(_field(pattern, node, name) for name in fields)


_RULES: dict[type[ast.AST], Callable[..., bool]] = {
    ast.Call: _call,
    ast.Constant: _constant,
    ast.Assign: _assign,
    ast.Set: _set,
    ast.Dict: _dict,
    ast.FunctionDef: _function,
    ast.AsyncFunctionDef: _function,
    ast.ClassDef: _class,
    ast.ExceptHandler: _handler,
}
