"""Finds our own code in a tree that is already patched, and takes it out, so that anchors see the pristine shape."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ..patches.patchmodel import Edit
from ..patches.pattern import Found, compile_pattern, matches
from ..patches.verbs import IMPORT, UPSTREAM, elements, expression, statements
from ..syntax.nodes import IGNORED, dump, expressions, own_nodes, places, same
from ..syntax.source import Source
from .inside import display_of

INSIDE = -1
"""Index of a mark that belongs to a node itself, not to a gap between statements."""


@dataclass(frozen=True)
class Mark:
    """Our code, found at a line; `code` is the same text for the same code."""

    code: str
    line: int


@dataclass
class Ours:
    """A file with our code taken out of its tree, and where it stood: (block or node, index) -> marks."""

    source: Source
    marks: dict[tuple[int, int], list[Mark]] = field(default_factory=dict)

    def add(self, owner: object, index: int, mark: Mark) -> None:
        """Records a mark of ours at its place."""
        self.marks.setdefault((id(owner), index), []).append(mark)

    def claim(self, form: Edit, found: Found) -> bool:
        """Whether this edit's code stands at this hit; what was claimed once is not found again."""
        wanted = code_of(form)
        for key in _keys(form, found, self.marks):
            for mark in self.marks.get(key, ()):
                if mark.code == wanted:
                    self.marks[key].remove(mark)
                    return True
        return False

    def strays(self) -> Iterator[Mark]:
        """Our statements that stand beside no anchor."""
        for (_, index), marks in self.marks.items():
            if index != INSIDE:
                yield from marks


def code_of(form: Edit) -> str:
    """An edit's code in one canonical form."""
    parsers = {"wrap": expression, "base": expression, "append": elements}
    parsed = parsers.get(form.verb, statements)(form.code)
    return dump(list(parsed) if isinstance(parsed, tuple) else parsed)


def _keys(form: Edit, found: Found, marks: dict[tuple[int, int], list[Mark]]) -> list[tuple[int, int]]:
    place, node = found.place, found.node
    if form.verb == IMPORT:
        body = id(node.body)  # type: ignore[union-attr]
        return [key for key in marks if key[0] == body and key[1] != INSIDE]
    if form.verb in ("before", "after"):
        return [(id(place.block), place.index + (form.verb == "after"))]
    return [(id(display_of(node) if form.verb == "append" else node), INSIDE)]


def take_out(source: Source, forms: Sequence[Edit]) -> Ours:
    """The file as it would be without our edits. A file that holds none of their names is returned as it is."""
    present = [form for form in forms if _names_in(form, source.text)]
    if not present:
        return Ours(source)
    ours = Ours(source.reparsed())
    for form in present:
        for scope in ours.source.scopes.get(form.scope, ()):
            remover = _REMOVERS.get(form.verb)
            if remover:
                remover(ours, form, scope.node)
    _take_statements(ours, [form for form in present if form.verb not in _REMOVERS])
    return Ours(replace(ours.source), ours.marks)


def _names_in(form: Edit, text: str) -> bool:
    """Cheap and never wrongly no: code in a file has its names in the file's text."""
    code = elements(form.code) if form.verb == "append" else ast.parse(form.code.strip())
    fields = (getattr(node, name, None) for node in ast.walk(code) for name in ("id", "attr", "name", "asname"))
    names = {name.rsplit(".", 1)[-1] for name in fields if isinstance(name, str)}
    return all(name in text for name in names - {UPSTREAM})


def _take_statements(ours: Ours, forms: Sequence[Edit]) -> None:
    found_blocks: dict[int, tuple[list[ast.stmt], list[Edit]]] = {}
    for form in sorted(forms, key=lambda form: -len(statements(form.code))):
        for scope in ours.source.scopes.get(form.scope, ()):
            own = [scope.node.body] if form.verb == IMPORT else _blocks(scope.node)  # type: ignore[union-attr]
            for block in own:
                found_blocks.setdefault(id(block), (block, []))[1].append(form)
    for block, wanted in found_blocks.values():
        _take_from_block(ours, block, wanted)


def _blocks(scope: ast.AST) -> list[list[ast.stmt]]:
    return list({id(place.block): place.block for place in places(scope)}.values())


def _take_from_block(ours: Ours, block: list[ast.stmt], forms: list[Edit]) -> None:
    kept: list[ast.stmt] = []
    index = 0
    while index < len(block):
        for form in forms:
            body = list(statements(form.code))
            if same(block[index : index + len(body)], body):
                ours.add(block, len(kept), Mark(code_of(form), block[index].lineno))
                index += len(body)
                break
        else:
            kept.append(block[index])
            index += 1
    block[:] = kept


def _take_base(ours: Ours, form: Edit, scope: ast.AST) -> None:
    for node in getattr(scope, "bases", ()):
        if same(node, expression(form.code)):
            scope.bases.remove(node)  # type: ignore[attr-defined]
            ours.add(scope, INSIDE, Mark(code_of(form), node.lineno))
            return


def _take_elements(ours: Ours, form: Edit, scope: ast.AST) -> None:
    wanted = _columns(elements(form.code))
    size = len(wanted[0])
    displays = [node for place in places(scope) for node in expressions(place.node) if display_of(node)]
    for node in displays:
        columns = _columns(node)
        for start in range(len(columns[0]) - size, -1, -1):
            if same([column[start : start + size] for column in columns], wanted):
                for column in columns:
                    del column[start : start + size]
                ours.add(node, INSIDE, Mark(code_of(form), node.lineno))
                break


def _columns(display: ast.AST) -> list[list[ast.expr]]:
    """A dict's keys and values go together; other displays have one list."""
    return [display.keys, display.values] if isinstance(display, ast.Dict) else [display.elts]  # type: ignore[attr-defined, list-item]


def _take_wrap(ours: Ours, form: Edit, scope: ast.AST) -> None:
    parents = [node for place in places(scope) for node in (place.node, *own_nodes(place.node))]
    for parent in parents:
        for name, value in list(ast.iter_fields(parent)):
            if isinstance(value, ast.expr):
                setattr(parent, name, _unwrapped(ours, form, value))
            elif isinstance(value, list):
                value[:] = [_unwrapped(ours, form, item) if isinstance(item, ast.expr) else item for item in value]


def _unwrapped(ours: Ours, form: Edit, node: ast.expr) -> ast.expr:
    captured: list[ast.expr] = []
    if not _fits(expression(form.code), node, captured):
        return node
    if not matches(compile_pattern(form.anchor).node, captured[0]):
        return node
    ours.add(captured[0], INSIDE, Mark(code_of(form), node.lineno))
    return captured[0]


def _fits(template: object, node: object, captured: list[ast.expr]) -> bool:
    """Like `same`, with one name in the template that stands for any expression."""
    if isinstance(template, ast.Name) and template.id == UPSTREAM and isinstance(node, ast.expr):
        captured.append(node)
        return True
    if isinstance(template, ast.AST):
        return type(template) is type(node) and all(
            _fits(getattr(template, name, None), getattr(node, name, None), captured)
            for name in template._fields
            if name not in IGNORED
        )
    if isinstance(template, list):
        return (
            isinstance(node, list)
            and len(template) == len(node)
            and all(_fits(left, right, captured) for left, right in zip(template, node, strict=True))
        )
    return same(template, node)


_REMOVERS = {"wrap": _take_wrap, "base": _take_base, "append": _take_elements}
