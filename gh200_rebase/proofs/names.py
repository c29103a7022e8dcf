"""Whether every name our code reads has a value where the code was put."""

from __future__ import annotations

import ast
import builtins
import copy
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from pyflakes import checker, messages  # type: ignore[import-untyped]

from ..patches.patchmodel import Edit
from ..patches.verbs import UPSTREAM, expression
from ..syntax.nodes import DEFS, FUNCTIONS, own_nodes, places
from ..syntax.source import Source
from .modules import MODULE_ATTRIBUTES, bindings
from .removal import Own

KNOWN = frozenset(dir(builtins)) | MODULE_ATTRIBUTES | {UPSTREAM}
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
EARLIEST, LATEST, NEVER = (0, 0), (1 << 60, 0), (1 << 61, 0)

type Position = tuple[int, int]


class UndefinedNames:
    """pyflakes' undefined names in a file; functions no edit touches are emptied first, they cannot change."""

    def __init__(self, source: Source, scopes: Iterable[str], own: Iterable[ast.AST] = ()) -> None:
        self.source = source
        self.scopes = frozenset(scopes)
        self.own = {id(node) for node in own}

    @cached_property
    def found(self) -> list[messages.Message]:
        """pyflakes' messages about undefined names."""
        tree = self._reduced(self.source.tree, "")
        result = checker.Checker(tree, filename=self.source.path).messages
        return [item for item in result if isinstance(item, messages.UndefinedName | messages.UndefinedLocal)]

    def more_than(self, before: UndefinedNames) -> list[tuple[str, int]]:
        """Names, with their line, that were not undefined before."""
        known = Counter(str(item.message_args[0]) for item in before.found)
        new: list[tuple[str, int]] = []
        for item in self.found:
            name = str(item.message_args[0])
            known[name] -= 1
            if known[name] < 0:
                new.append((name, item.lineno))
        return new

    def _reduced(self, node: ast.AST, prefix: str) -> ast.AST:
        """A copy of the upper levels of a tree; classes and blocks stay, bodies of other functions go."""
        result = copy.copy(node)
        for name, value in ast.iter_fields(node):
            if (
                isinstance(value, list)
                and value
                and isinstance(value[0], ast.stmt | ast.ExceptHandler | ast.match_case)
            ):
                setattr(result, name, [self._kept(item, prefix) for item in value])
        return result

    def _kept(self, node: ast.AST, prefix: str) -> ast.AST:
        if not isinstance(node, DEFS):
            return self._reduced(node, prefix)
        name = prefix + node.name
        if name in self.scopes or id(node) in self.own:
            return node
        if isinstance(node, ast.ClassDef) or any(scope.startswith(name + ".") for scope in self.scopes):
            return self._reduced(node, name + ".")
        result = copy.copy(node)
        result.body = [ast.copy_location(ast.Pass(), node.body[0])]
        return result


class Bindings:
    """From where in a file each name of each scope has a value."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._known: dict[int, dict[str, Position]] = {}

    def unbound(self, form: Edit, own: Sequence[Own]) -> list[str]:
        """Names our code reads that nothing gives a value before it runs."""
        missing: set[str] = set()
        for item in own:
            names = _free_names(expression(form.code) if form.verb == "wrap" else item.node)
            missing |= {name for name in names - KNOWN if not self._is_bound(item, name)}
        return sorted(missing)

    def _is_bound(self, item: Own, name: str) -> bool:
        at = (item.statement.lineno, item.statement.col_offset)  # type: ignore[attr-defined]
        functions = [node for node in item.around if isinstance(node, FUNCTIONS)]
        # Bodies of functions run when the module, and the functions around them, are complete.
        runs_later = bool(functions) or isinstance(item.node, FUNCTIONS)
        scopes: list[tuple[ast.AST, Position]] = [(self.source.tree, LATEST if runs_later else at)]
        scopes += [(function, LATEST) for function in functions[:-1]]
        scopes += [(node, at) for node in (*functions[-1:], *item.around[-1:])]
        return any(self._from(scope, name) <= limit for scope, limit in scopes)

    def _from(self, scope: ast.AST, name: str) -> Position:
        if id(scope) not in self._known:
            self._known[id(scope)] = _first_bindings(self.source.path, scope)
        known = self._known[id(scope)]
        return min(known.get(name, NEVER), known.get("*", NEVER))


def _first_bindings(path: str, scope: ast.AST) -> dict[str, Position]:
    """Each name of a scope with the position from which it has a value."""
    first: dict[str, Position] = {}
    if isinstance(scope, FUNCTIONS):
        first |= dict.fromkeys((arg.arg for arg in _parameters(scope.args)), EARLIEST)
    for place in places(scope):
        node = place.node
        # A simple statement binds when it is done, a compound one on the way into its block.
        is_compound = hasattr(node, "body") and not isinstance(node, DEFS)
        assert isinstance(node, ast.stmt)
        done = (node.end_lineno or node.lineno, node.end_col_offset or 0)
        at = (node.lineno, node.col_offset) if is_compound else done
        for name in _bound_names(path, node):
            first[name] = min(first.get(name, at), at)
    return first


def _bound_names(path: str, node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Global | ast.Nonlocal):
        yield from node.names
    hidden = {
        id(part)
        for comprehension in own_nodes(node)
        if isinstance(comprehension, ast.comprehension)
        for part in ast.walk(comprehension.target)
    }
    if not hidden:
        yield from (name for name, _ in bindings(path, node))
    else:
        stores = (part for part in own_nodes(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store))
        yield from (part.id for part in stores if id(part) not in hidden)
    for part in own_nodes(node):
        if isinstance(part, ast.MatchAs | ast.MatchStar) and part.name:
            yield part.name


def _parameters(args: ast.arguments) -> list[ast.arg]:
    extra = [arg for arg in (args.vararg, args.kwarg) if arg]
    return [*args.posonlyargs, *args.args, *args.kwonlyargs, *extra]


def _free_names(node: ast.AST) -> set[str]:
    """Names a node of ours reads and does not bind itself."""
    names = [part for part in ast.walk(node) if isinstance(part, ast.Name)]
    binds_inside = (ast.Lambda, *FUNCTIONS, *COMPREHENSIONS)
    own: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.arguments):
            own |= {arg.arg for arg in _parameters(part)}
        if isinstance(part, binds_inside) or hasattr(part, "body"):
            own |= {
                name.id for name in ast.walk(part) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
            }
        if hasattr(part, "body"):
            own |= {
                alias.asname or alias.name.split(".")[0] for alias in ast.walk(part) if isinstance(alias, ast.alias)
            }
    return {part.id for part in names if isinstance(part.ctx, ast.Load)} - own
