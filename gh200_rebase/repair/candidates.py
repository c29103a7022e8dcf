"""Where an edit that lost its place may have gone: every scope of every file, rated by shape and surroundings."""

from __future__ import annotations

import ast
import copy
import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ..engine.fingerprint import digest
from ..engine.inside import display_of
from ..patches.lockfile import Entry
from ..patches.patchmodel import Edit
from ..patches.pattern import Found, Pattern, compile_pattern, find, is_hole, matches
from ..patches.verbs import needed_names
from ..syntax.bound import unbound
from ..syntax.nodes import BLOCK_FIELDS, Place, deep_trees, expressions, header_dump, places
from ..syntax.source import Source, Unreadable, read_source
from ..syntax.tree import Tree
from .renames import rename_edit, renamed

_NEAR = 4
_KEPT = 8
_CERTAIN = 4.0
"""A place that looks this much like the old one is not looked for in other files."""
_TELLING = 10
"""Letters that an anchor's words must have together, before a file is read because it has them."""


@dataclass(frozen=True)
class Site:
    """One place: the file, the scope's name, and the match."""

    source: Source
    scope: str
    found: Found

    @property
    def line(self) -> int:
        """Its line."""
        return int(getattr(self.found.node, "lineno", 1))

    @property
    def scope_node(self) -> ast.AST:
        """The node of its scope."""
        return self.source.scopes[self.scope][0].node


@dataclass(frozen=True)
class Candidate:
    """A form of the edit for one place, and its score."""

    form: Edit
    site: Site
    score: float


@deep_trees()
def last_site(form: Edit, tree: Tree) -> Site | None:
    """Where this form landed in an upstream in which it did."""
    data = tree.read(form.file)
    try:
        source = read_source(form.file, data) if data is not None else None
    except Unreadable:
        return None
    if source is None or form.scope not in source.scopes:
        return None
    if not form.anchor:
        place = source.scopes[form.scope][0]
        return Site(source, form.scope, Found(place, place.node))
    hits = [item for place in source.scopes[form.scope] for item in find(compile_pattern(form.anchor), place.node)]
    return Site(source, form.scope, hits[0]) if hits else None


@deep_trees()
def candidates(
    edit: Edit, tree: Tree, old: Site | None, lock: tuple[Entry, ...], ours: frozenset[str]
) -> list[Candidate]:
    """The best places for the edit, best first; `ours` are names that our own imports bring."""
    found: dict[tuple[str, str, int], Candidate] = {}
    for search in (_own_files, _other_files):
        for form in edit.forms():
            form = replace(form, variants=())
            for source in search(form, tree):
                for one in _in_file(form, source, old, lock, ours):
                    key = (source.path, one.site.scope, id(one.site.found.node))
                    if key not in found or found[key].score < one.score:
                        found[key] = one
        if any(one.score >= _CERTAIN for one in found.values()):
            break
    return sorted(found.values(), key=lambda one: (-one.score, one.site.source.path, one.site.line))[:_KEPT]


def _in_file(
    form: Edit, source: Source, old: Site | None, lock: tuple[Entry, ...], ours: frozenset[str]
) -> Iterator[Candidate]:
    for scope, place in _scopes(source):
        for made, item in _forms_for(form, source, scope, place.node, old, ours):
            site = Site(source, scope, item)
            yield Candidate(made, site, _score(form, made, site, old, lock, ours))


def _own_files(form: Edit, tree: Tree) -> Iterator[Source]:
    yield from _readable([form.file], tree)


def _other_files(form: Edit, tree: Tree) -> Iterator[Source]:
    """Every other file that has the words of the anchor, or the class or function it was in."""
    words, top = _words(form), form.scope.split(".")[0]
    telling = sum(map(len, words)) >= _TELLING
    for path in tree.paths():
        if path.endswith(".py") and path.startswith(form.file.split("/")[0]) and path != form.file:
            data = tree.read(path) or b""
            has_top = bool(top) and any(f"{kind} {top}".encode() in data for kind in ("class", "def"))
            if has_top or (telling and all(word in data for word in words)):
                yield from _readable([path], tree)


def _readable(paths: Iterable[str], tree: Tree) -> Iterator[Source]:
    for path in paths:
        data = tree.read(path)
        try:
            if data is not None:
                yield read_source(path, data)
        except Unreadable:
            continue


def _words(form: Edit) -> list[bytes]:
    if not form.anchor:
        return []
    node = compile_pattern(form.anchor).node
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    names |= {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
    return [name.encode() for name in names if len(name) > 4 and not name.startswith("__any__")]


def _scopes(source: Source) -> Iterator[tuple[str, Place]]:
    for name, found in source.scopes.items():
        if len(found) == 1:
            yield name, found[0]


def _forms_for(
    form: Edit, source: Source, scope: str, node: ast.AST, old: Site | None, ours: frozenset[str]
) -> Iterator[tuple[Edit, Found]]:
    """Forms of the edit that hit this scope as often as they must, from the strictest to the loosest."""
    here = replace(form, file=source.path, scope=scope)
    if not form.anchor:
        if isinstance(node, ast.ClassDef):
            place = source.scopes[scope][0]
            yield here, Found(place, node)
        return
    missing = unbound(source, scope, needed_names(form) - ours)
    names = {name: name for name in _variables(form)}
    if old is not None and (missing or form.anchor):
        wanted = {name for name in names if name in missing or not _occurs(node, name)}
        names |= renamed(old.scope_node, node, wanted) if wanted else {}
    made = rename_edit(here, names)
    for anchor in dict.fromkeys([form.anchor, made.anchor, *_loosened(made.anchor, node, old)]):
        # An anchor that was renamed belongs to the code that was.
        shaped = replace(made, anchor=anchor)
        hits = _hits(compile_pattern(anchor), shaped, node)
        if len(hits) == form.count:
            yield shaped, hits[0]


def _variables(form: Edit) -> set[str]:
    node = compile_pattern(form.anchor).node
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return {name for name in {*names, *needed_names(form)} if name != "self" and not name.startswith("__any__")}


def _occurs(scope: ast.AST, name: str) -> bool:
    return any(isinstance(part, ast.Name | ast.arg) and name in vars(part).values() for part in ast.walk(scope))


def _hits(pattern: Pattern, form: Edit, scope: ast.AST) -> list[Found]:
    hits = list(find(pattern, scope))
    if form.verb == "append":
        return [item for item in hits if display_of(item.node)]
    if form.verb in ("before", "after"):
        return list({id(item.place.node): item for item in hits}.values())
    return [item for item in hits if isinstance(getattr(item.node, "ctx", ast.Load()), ast.Load)]


def _loosened(anchor: str, scope: ast.AST, old: Site | None) -> Iterator[str]:
    """Anchors of statements of the same kind: those that hold the old expression inside, and those that look alike."""
    pattern = compile_pattern(anchor).node
    if old is not None:
        yield from _renamed_callees(pattern, scope, old)
    if isinstance(pattern, ast.expr):
        return
    inner = next(_header_expressions(pattern), None)
    rated: list[tuple[float, str]] = []
    for place in places(scope):
        if type(place.node) is not type(pattern):
            continue
        holds = inner is not None and any(matches(inner, part) for part in expressions(place.node))
        likeness = _body_likeness(place.node, old.found.node) if old else 0.0
        if holds or likeness > 0.5:
            rated.append((holds + likeness, _anchor_text(place.node, inner if holds else None)))
    yield from (text for _, text in sorted(rated, key=lambda item: -item[0])[:2])


def _renamed_callees(pattern: ast.expr | ast.stmt, scope: ast.AST, old: Site) -> Iterator[str]:
    """Statements and calls that are the old one but for the name of the function that is called."""
    wanted = _without_callees(old.found.node)
    for place in places(scope):
        parts = expressions(place.node) if isinstance(pattern, ast.expr) else [place.node]
        for part in parts:
            if wanted and type(part) is type(old.found.node) and _without_callees(part) == wanted:
                yield _anchor_text(part, None)


def _without_callees(node: ast.AST) -> str:
    """The code with every called name the same; empty without a call."""
    bare = copy.deepcopy(node)
    calls = [part for part in expressions(bare) if isinstance(part, ast.Call)]
    calls += [bare] if isinstance(bare, ast.Call) else []
    for call in calls:
        if isinstance(call.func, ast.Attribute):
            call.func.attr = "_"
        elif isinstance(call.func, ast.Name):
            call.func.id = "_"
    return header_dump(bare) if calls else ""


def _header_expressions(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions of a pattern's header that say something."""
    for part in expressions(node):
        if isinstance(part, ast.Call | ast.Compare | ast.Attribute) and not is_hole(part):
            yield part


def _anchor_text(node: ast.AST, inner: ast.expr | None) -> str:
    """A pattern for this very statement: its header, arguments left open, the body too."""
    bare = copy.deepcopy({name: value for name, value in ast.iter_fields(node) if name not in BLOCK_FIELDS})
    made = type(node)(**bare)
    if "body" in node._fields:
        made.body = [ast.Expr(ast.Constant(...))]  # type: ignore[attr-defined]
    for name in ("orelse", "finalbody", "handlers"):
        if name in node._fields:
            setattr(made, name, [])
    opened = _Opened(inner).visit(made)
    return ast.unparse(ast.fix_missing_locations(opened))


class _Opened(ast.NodeTransformer):
    """Arguments of calls become `...`, but for a call that the old anchor names."""

    def __init__(self, inner: ast.expr | None) -> None:
        self.inner = inner

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if self.inner is not None and matches(self.inner, node):
            return self.inner
        inside = self.inner is not None and any(
            matches(self.inner, part) for part in ast.walk(node) if part is not node
        )
        if inside:
            kept = [self.visit(item) if _holds(item, self.inner) else ast.Constant(...) for item in node.args]
            while kept and is_hole(kept[-1]):
                kept.pop()
            return ast.Call(node.func, [*kept, ast.Constant(...)], [])
        return ast.Call(node.func, [ast.Constant(...)], []) if node.args or node.keywords else node


def _holds(node: ast.AST, inner: ast.expr | None) -> bool:
    return inner is not None and any(matches(inner, part) for part in ast.walk(node) if isinstance(part, ast.expr))


def _body_likeness(one: ast.AST, other: ast.AST) -> float:
    left, right = ([header_dump(item) for item in getattr(node, "body", None) or []] for node in (one, other))
    return _common(left, right) if left and right else 0.0


def _common(left: Iterable[str], right: Iterable[str]) -> float:
    one, other = set(left), set(right)
    return len(one & other) / len(one | other) if one | other else 0.0


def _around(site: Site) -> list[str]:
    block, index = site.found.place.block, site.found.place.index
    return [
        header_dump(node) for node in [*block[max(index - _NEAR, 0) : index], *block[index + 1 : index + 1 + _NEAR]]
    ]


def _methods(node: ast.AST) -> set[str]:
    return {item.name for item in getattr(node, "body", ()) if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)}


def _score(
    form: Edit, made: Edit, site: Site, old: Site | None, lock: tuple[Entry, ...], ours: frozenset[str]
) -> float:
    """Shape first, then what stands around, then the hashes of the lock, then the names of file and scope."""
    node = site.found.node
    score = 2.0 * (made.anchor == form.anchor)
    if not form.anchor:
        score += 3.0 * (node.name == form.scope.rpartition(".")[2])  # type: ignore[union-attr]
        score += 3.0 * _common(_methods(node), _methods(old.found.node)) if old else 0.0
    if old is not None:
        score += 2.0 * _common(_around(site), _around(old)) + 2.0 * _body_likeness(node, old.found.node)
        chains = [[header_dump(owner) for owner, _ in each.found.place.chain] for each in (site, old)]
        score += _common(*chains)
    anchor = digest(header_dump(node))
    score += 1.0 * any(entry.anchor == anchor for entry in lock)
    score += 1.0 * (site.source.path == form.file) + 0.5 * (site.scope.split(".")[0] == form.scope.split(".")[0])
    score += difflib.SequenceMatcher(None, site.scope, form.scope).ratio()
    return score - 3.0 * bool(unbound(site.source, site.scope, needed_names(made) - ours))
