"""Takes our insertions out of a patched file again, by position: the basis of the proofs."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..patches.patchmodel import Edit
from ..patches.verbs import UPSTREAM, elements, expression, statements
from ..syntax.nodes import DEFS, IGNORED, dump
from ..syntax.source import Source
from ..syntax.splice import Inserted


@dataclass(frozen=True)
class Own:
    """A node of ours in the patched tree: the statement it is in, and the defs and classes around that."""

    edit: str
    node: ast.AST
    statement: ast.AST
    around: tuple[ast.AST, ...]


@dataclass
class Removal:
    """Nodes to leave out, nodes that stand for the one they wrap, and which edit each belongs to."""

    dropped: set[int] = field(default_factory=set)
    wraps: dict[int, ast.AST] = field(default_factory=dict)
    own: list[Own] = field(default_factory=list)

    def of(self, edit: str) -> list[Own]:
        """The nodes of one edit."""
        return [item for item in self.own if item.edit == edit]


def bytes_problem(original: bytes, final: bytes, inserted: Sequence[Inserted]) -> str:
    """Delete every inserted span from the new bytes; nothing is put back."""
    kept: list[bytes] = []
    position = 0
    for item in inserted:
        if final[item.start : item.end] != item.splice.piece.data:
            return f"the bytes at {item.start} are not the ones edit {item.splice.edit} inserted"
        kept.append(final[position : item.start])
        position = item.end
    kept.append(final[position:])
    return "" if b"".join(kept) == original else "the file without our bytes is not the original"


def find_own(final: Source, inserted: Sequence[Inserted]) -> Removal:
    """The nodes of ours, found by where their text stands."""
    removal = Removal()
    lines = sorted({line for item in inserted for line in _lines(final, item)})
    spans = [item for item in inserted if item.splice.piece.kind in ("insert", "base")]
    opens = [item for item in inserted if item.splice.piece.kind == "open"]
    closes = [item for item in inserted if item.splice.piece.kind == "close"]
    pairs = [
        (left, right)
        for left in opens
        for right in closes
        if (left.splice.edit, left.splice.piece.region) == (right.splice.edit, right.splice.piece.region)
    ]
    _Finder(final, lines, spans, pairs, removal).visit(final.tree, final.tree, ())
    return removal


def _lines(final: Source, item: Inserted) -> range:
    return range(final.line_at(item.start), final.line_at(max(item.end - 1, item.start)) + 1)


@dataclass
class _Finder:
    source: Source
    lines: list[int]
    spans: list[Inserted]
    pairs: list[tuple[Inserted, Inserted]]
    removal: Removal

    def visit(self, node: ast.AST, statement: ast.AST, around: tuple[ast.AST, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            if hasattr(child, "lineno") and not self._touched(child):
                continue
            inside = child if isinstance(child, ast.stmt) else statement
            if isinstance(child, ast.expr | ast.stmt) and self._take(child, inside, around):
                continue
            self.visit(child, inside, (*around, child) if isinstance(child, DEFS) else around)

    def _touched(self, node: ast.AST) -> bool:
        first = min([node.lineno, *(item.lineno for item in getattr(node, "decorator_list", ()))])  # type: ignore[attr-defined]
        return any(first <= line <= node.end_lineno for line in self.lines)  # type: ignore[attr-defined]

    def _take(self, node: ast.expr | ast.stmt, statement: ast.AST, around: tuple[ast.AST, ...]) -> bool:
        start, end = self.source.span(node)
        for item in self.spans:
            if item.start <= start and end <= item.end:
                self.removal.dropped.add(id(node))
                self.removal.own.append(Own(item.splice.edit, node, statement, around))
                return True
        for left, right in self.pairs if isinstance(node, ast.expr) else ():
            # Upstream's text may stand at the very beginning or end of the expression we put around it.
            around_it = left.start <= start <= left.end and right.start <= end <= right.end
            if around_it and (start, end) != (left.end, right.start):
                captured = self._captured(node, left, right)
                if captured is not None:
                    self.removal.wraps[id(node)] = captured
                    self.removal.own.append(Own(left.splice.edit, node, statement, around))
                    return True
        return False

    def _captured(self, node: ast.AST, left: Inserted, right: Inserted) -> ast.expr | None:
        for part in ast.walk(node):
            if isinstance(part, ast.expr):
                start, end = self.source.span(part)
                # A tuple that had no parentheses was given some, and they count as part of it.
                bare_tuple = isinstance(part, ast.Tuple) and (start, end) == (left.end - 1, right.start + 1)
                if bare_tuple or (left.end <= start and end <= right.start):
                    return part
        return None


def tree_problem(original: object, final: object, removal: Removal) -> str:
    """Compare the original tree with the patched one, our nodes left out of the latter; says where they part."""
    final = removal.wraps.get(id(final), final)
    if type(original) is not type(final):
        return f"a {type(final).__name__} stands where the original has a {type(original).__name__}"
    if isinstance(original, ast.AST):
        for name in original._fields:
            if name in IGNORED:
                continue
            left, right = getattr(original, name, None), getattr(final, name, None)
            if name == "keys" and isinstance(final, ast.Dict):
                right = [
                    key for key, value in zip(final.keys, final.values, strict=True) if id(value) not in removal.dropped
                ]
            problem = tree_problem(left, right, removal)
            if problem:
                line = getattr(original, "lineno", 0)
                return problem if " line " in problem or not line else f"{problem} (original line {line})"
        return ""
    if isinstance(original, list):
        assert isinstance(final, list)
        kept = [item for item in final if id(item) not in removal.dropped]
        if len(kept) != len(original):
            return f"{len(kept)} parts instead of {len(original)}"
        for one, other in zip(original, kept, strict=True):
            problem = tree_problem(one, other, removal)
            if problem:
                return problem
        return ""
    return "" if original == final else f"{final!r} stands where the original has {original!r}"


def code_problem(form: Edit, own: Sequence[Own], removal: Removal, count: int) -> str:
    """Whether the nodes that were removed are the patch's code, once per hit."""
    present = [dump(item.node) for item in own]
    if form.verb == "wrap":
        present = [dump(_Unwrap(removal.wraps[id(item.node)]).shown(item.node)) for item in own]
        wanted = [dump(expression(form.code))]
    elif form.verb == "base":
        wanted = [dump(expression(form.code))]
    elif form.verb == "append":
        wanted = [dump(node) for node in ast.iter_child_nodes(elements(form.code)) if isinstance(node, ast.expr)]
    else:
        wanted = [dump(node) for node in statements(form.code)]
    return "" if present == wanted * count else f"the file holds {len(present)} part(s) that are not the patch's code"


@dataclass
class _Unwrap:
    """Shows a wrapped expression with the placeholder where upstream's text is."""

    captured: ast.AST

    def shown(self, node: object) -> object:
        if node is self.captured:
            return ast.Name(UPSTREAM, ast.Load())
        if isinstance(node, ast.AST):
            return type(node)(**{name: self.shown(value) for name, value in ast.iter_fields(node)})
        return [self.shown(item) for item in node] if isinstance(node, list) else node
