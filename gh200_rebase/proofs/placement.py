"""Placement contracts: whether an edit that landed is reached, in the right order, with the values it was written for."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..patches.patchmodel import Edit
from ..patches.pattern import compile_pattern, find, matches
from ..syntax.exits import exit_before, falls_through
from ..syntax.nodes import DEFS, FUNCTIONS, Place, own_nodes, places
from .removal import Own

_LOOPS = (ast.For, ast.AsyncFor, ast.While)


@dataclass(frozen=True)
class Violation:
    """A contract of an edit that does not hold in this upstream; the line is the patched file's."""

    edit_key: str
    file: str
    line: int
    what: str


@dataclass(frozen=True)
class Spot:
    """One landing of an edit: the scopes around it from the module inwards, and all of our own nodes in the file."""

    own: Own
    scopes: tuple[ast.AST, ...]
    ours: frozenset[int]

    @property
    def scope(self) -> ast.AST:
        """The innermost scope."""
        return self.scopes[-1]

    @property
    def at(self) -> tuple[int, int]:
        """Line and column."""
        return _position(self.own.node)


def violations(
    form: Edit, key: str, module: ast.Module, own: Sequence[Own], ours: Sequence[Own]
) -> Iterator[Violation]:
    """Every contract of this form that one of its landings breaks."""
    marked = frozenset(id(item.node) for item in ours)
    for item in own:
        around = item.around[:-1] if form.verb == "base" else item.around
        spot = Spot(item, (module, *around), marked)
        for line, what in (
            *_unreached(spot, form, own),
            *_disordered(spot, form),
            *_stale(spot, form),
            *_stored(spot, form),
        ):
            yield Violation(key, form.file, line, what)


def _unreached(spot: Spot, form: Edit, landed: Sequence[Own]) -> Iterator[tuple[int, str]]:
    """Reached: nothing on the way in leaves before it, and no later definition takes the place of one around it."""
    steps = [*spot.scopes[1:], spot.own.statement]
    for scope, inner in zip(spot.scopes, steps, strict=True):
        place = next((place for place in places(scope) if place.node is inner), None)
        if place is None:
            continue
        exit_ = exit_before(place)
        if exit_ is None and inner is spot.own.statement and form.verb == "after":
            exit_ = _anchor_that_leaves(place)
        if exit_ is not None:
            yield _line(inner), f"never reached: line {exit_.lineno} leaves before it"
        if isinstance(inner, DEFS):
            yield from _replaced(scope, place, inner, {id(node) for item in landed for node in item.around})


def _anchor_that_leaves(place: Place) -> ast.stmt | None:
    before = place.block[place.index - 1] if place.index else None
    return before if before is not None and not falls_through(before) else None


def _replaced(
    scope: ast.AST, place: Place, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, patched_too: set[int]
) -> Iterator[tuple[int, str]]:
    for other in places(scope):
        if other.node is node or not _rebinds(other.node, node.name):
            continue
        if _exclusive(place, other):
            if isinstance(other.node, DEFS) and id(other.node) not in patched_too:
                yield _line(other.node), f"{node.name} is defined in another branch here, and that one is not patched"
        elif _position(other.node) > _position(node):
            yield _line(other.node), f"{node.name} is defined again here: the one that was patched is dead"
    name = node.name
    if isinstance(scope, ast.ClassDef):
        return
    for other in places(scope):
        for target in _targets(other.node):
            if (
                isinstance(target, ast.Attribute)
                and ast.unparse(target.value) == name
                and isinstance(node, ast.ClassDef)
            ):
                patched = {item.name for item in node.body if isinstance(item, DEFS)}
                if target.attr in patched and not _mentions(other.node, f"{name}.{target.attr}"):
                    yield _line(other.node), f"{name}.{target.attr} is replaced here after its definition"


def _rebinds(node: ast.AST, name: str) -> bool:
    if isinstance(node, DEFS):
        # A property's setter keeps the getter it is made from.
        extends = any(
            isinstance(item, ast.Attribute) and ast.unparse(item.value) == name for item in node.decorator_list
        )
        return node.name == name and not extends
    if isinstance(node, ast.Import | ast.ImportFrom):
        return any((alias.asname or alias.name.split(".")[0]) == name for alias in node.names)
    stores = any(isinstance(target, ast.Name) and target.id == name for target in _targets(node))
    # `f = decorate(f)` still leads to f.
    return stores and not _mentions(node, name)


def _mentions(node: ast.AST, name: str) -> bool:
    value = getattr(node, "value", None)
    return value is not None and any(
        isinstance(part, ast.Name | ast.Attribute) and isinstance(part.ctx, ast.Load) and ast.unparse(part) == name
        for part in ast.walk(value)
    )


def _exclusive(one: Place, other: Place) -> bool:
    """Whether two places lie in different branches of the same statement, of which only one is taken."""
    for (left, left_part), (right, right_part) in zip(one.chain, other.chain, strict=False):
        if left is not right:
            return False
        if left_part != right_part:
            return isinstance(left, ast.If | ast.Match | ast.Try)
    return False


def bound_elsewhere(module: ast.Module, name: str, ours: Sequence[Own]) -> Iterator[ast.AST]:
    """Where upstream itself binds the name that our import binds in this file."""
    own = {id(part) for item in ours for part in ast.walk(item.node)}
    for node in ast.walk(module):
        names = (getattr(node, key, None) for key in ("id", "arg", "name", "asname", "rest"))
        loads = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        keyword = isinstance(node, ast.keyword)
        imported = isinstance(node, ast.alias) and (node.asname or node.name.split(".")[0]) == name
        if id(node) not in own and not loads and not keyword and (imported or name in names):
            yield node


def _disordered(spot: Spot, form: Edit) -> Iterator[tuple[int, str]]:
    for text, is_late in [(text, True) for text in form.after_every] + [(text, False) for text in form.before_any]:
        found = [item.node for item in find(compile_pattern(text), spot.scope) if id(item.node) not in spot.ours]
        if not found:
            yield spot.at[0], f"its order to `{text}` is unknown: there is none in {form.scope or 'the module'}"
        for node in found:
            if is_late and _position(node) > spot.at:
                yield _line(node), f"`{text}` comes after it, and it must come after every one"
            if not is_late and _position(node) < spot.at:
                yield _line(node), f"`{text}` comes before it, and it must come before any"


def _stale(spot: Spot, form: Edit) -> Iterator[tuple[int, str]]:
    """The names were last stored before it, in the same round of the innermost loop around it."""
    for name in form.last_stored:
        before, after = _stores_of(spot, name)
        # A store that the contract itself says comes later, such as that of a loop's counter.
        later = [compile_pattern(text).node for text in form.before_any]
        after = [node for node in after if not any(matches(pattern, node) for pattern in later)]
        if not before:
            yield spot.at[0], f"{name} is not stored before it in the same round"
        for node in after:
            yield _line(node), f"{name} is stored again here, after it was used"


def _stores_of(spot: Spot, name: str) -> tuple[list[ast.AST], list[ast.AST]]:
    here = next(place for place in places(spot.scope) if place.node is spot.own.statement)
    loop = next((owner for owner, _ in reversed(here.chain) if isinstance(owner, _LOOPS)), None)
    before: list[ast.AST] = []
    after: list[ast.AST] = []
    if isinstance(spot.scope, FUNCTIONS) and loop is None:
        every = [*spot.scope.args.posonlyargs, *spot.scope.args.args, *spot.scope.args.kwonlyargs]
        before += [arg for arg in every if arg.arg == name]
    for place in places(spot.scope):
        rounds = [owner for owner, _ in place.chain if isinstance(owner, _LOOPS)]
        same_round = (rounds[-1] if rounds else None) is loop or place.node is loop
        is_before = place.node is loop or _position(place.node) < _position(spot.own.statement)
        # An inner loop after it is part of the round, too.
        inside = loop is None or loop in rounds
        if id(place.node) in spot.ours or not _stores(place.node, name):
            continue
        if is_before and same_round:
            before.append(place.node)
        elif not is_before and inside:
            after.append(place.node)
    return before, after


def _stores(node: ast.AST, name: str) -> bool:
    nodes = own_nodes(node)
    return any(isinstance(part, ast.Name) and part.id == name and not isinstance(part.ctx, ast.Load) for part in nodes)


def _stored(spot: Spot, form: Edit) -> Iterator[tuple[int, str]]:
    """An attribute that must keep the value our code gives it is stored in one place of its class."""
    owner = next((scope for scope in reversed(spot.scopes) if isinstance(scope, ast.ClassDef)), spot.scope)
    for text in form.stored_once:
        found = [part for part in ast.walk(owner) if _stores_attribute(part, text)]
        lines = ", ".join(str(_line(part)) for part in found)
        if len(found) != 1:
            line = _line(found[-1]) if found else spot.at[0]
            yield line, f"{text} must be stored once, and is {len(found)} times" + (f" (line {lines})" if lines else "")


def _stores_attribute(part: ast.AST, text: str) -> bool:
    if isinstance(part, ast.Attribute):
        return not isinstance(part.ctx, ast.Load) and ast.unparse(part) == text
    if isinstance(part, ast.Call) and ast.unparse(part.func) in ("setattr", "delattr") and len(part.args) > 1:
        owner, name = text.rsplit(".", 1)
        return ast.unparse(part.args[0]) == owner and ast.unparse(part.args[1]) == repr(name)
    return False


def _targets(node: ast.AST) -> list[ast.AST]:
    if isinstance(node, ast.Assign | ast.Delete):
        return list(node.targets)
    return [node.target] if isinstance(node, ast.AnnAssign) and node.value is not None else []


def _position(node: ast.AST) -> tuple[int, int]:
    return node.lineno, node.col_offset  # type: ignore[attr-defined]


def _line(node: ast.AST) -> int:
    return int(node.lineno)  # type: ignore[attr-defined]
