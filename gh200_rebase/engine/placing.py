"""Where and how each verb puts our code into a file: from a matched node to bytes to insert."""

from __future__ import annotations

import ast
import io
import itertools
import re
import tokenize
from collections.abc import Callable
from dataclasses import dataclass

from ..patches.patchmodel import Edit
from ..patches.pattern import Found
from ..patches.verbs import IMPORT, statements
from ..syntax.nodes import Place
from ..syntax.source import Source, line_end
from ..syntax.splice import CannotPlace, Piece
from .inside import append, base, wrap

INDENT = re.compile(r"[ \t\f]*")
STRINGS = frozenset({tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)})


@dataclass(frozen=True)
class Line:
    """The logical line of a statement: where its first token is, its first physical line, what it is indented by."""

    start: int
    number: int
    indent: str
    eol: str


def line_of(source: Source, offset: int) -> Line:
    """The logical line at an offset."""
    start, number = source.logical_line(offset)
    text = source.lines[number - 1]
    indent = INDENT.match(text)
    assert indent
    # A form feed sets the column back to zero, so only what follows the last one indents.
    return Line(start, number, indent[0].rsplit("\f", 1)[-1], line_end(text) or source.eol)


def simple(code: str) -> str:
    """Our code on one line, for a place where there is only one."""
    body = statements(code)
    if any(hasattr(node, "body") or node.lineno != node.end_lineno for node in body):
        raise CannotPlace("the anchor shares its line with other code: only simple statements can be put there")
    return "; ".join(ast.get_source_segment(code, node) or "" for node in body)


def indented(code: str, indent: str) -> list[str]:
    """The code's lines at the given indentation; the inside of a multi-line string stays as it is."""
    inside: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(code + "\n").readline):
        if token.type in STRINGS:
            inside |= set(range(token.start[0] + 1, token.end[0] + 1))
    lines = code.split("\n")
    return [line if number in inside or not line else indent + line for number, line in enumerate(lines, start=1)]


def before(source: Source, form: Edit, found: Found) -> list[Piece]:
    """Insert statements before the anchored one."""
    return [_before(source, form.code, found.place)]


def after(source: Source, form: Edit, found: Found) -> list[Piece]:
    """Insert statements after the anchored one."""
    return [_after(source, form.code, found.place)]


def import_(source: Source, form: Edit, found: Found) -> list[Piece]:
    """After the last import of the file's head, which ends at the first `if`, `try`, def or class."""
    body = source.tree.body
    head = list(itertools.takewhile(lambda node: not hasattr(node, "body"), body))
    imports = [index for index, node in enumerate(head) if isinstance(node, ast.Import | ast.ImportFrom)]
    if ast.get_docstring(source.tree, clean=False) is not None:
        imports = imports or [0]
    if imports:
        return [_after(source, form.code, Place(body[imports[-1]], body, imports[-1], ()))]
    if body:
        return [_before(source, form.code, Place(body[0], body, 0, ()))]
    return [_at_line_end(source, form.code.split("\n"), len(source.lines), source.eol, 0)]


def _before(source: Source, code: str, place: Place) -> Piece:
    assert isinstance(place.node, ast.stmt)
    start, _ = source.span(place.node)
    _reject_elif(source, start)
    line = line_of(source, start)
    if line.start != start:
        return Piece(start, source.encode(simple(code) + "; "))
    text = "".join(text + line.eol for text in indented(code, line.indent))
    return Piece(source.line_start(line.number), source.encode(text), indent=len(line.indent))


def _after(source: Source, code: str, place: Place) -> Piece:
    assert isinstance(place.node, ast.stmt)
    start, end = source.span(place.node)
    _reject_elif(source, start)
    rest = source.following(end)
    semicolon = rest[0] if rest[0].text == ";" else None
    ends_line = rest[1 if semicolon else 0].kind == tokenize.NEWLINE
    if not ends_line or _in_one_line_suite(source, place):
        if semicolon:
            return Piece(semicolon.end, source.encode(f" {simple(code)};"))
        return Piece(end, source.encode(f"; {simple(code)}"))
    line = line_of(source, start)
    return _at_line_end(source, indented(code, line.indent), rest[-1].line, line.eol, len(line.indent))


def _at_line_end(source: Source, lines: list[str], number: int, eol: str, indent: int) -> Piece:
    """After a physical line, which may be the file's last and have no line end."""
    unended = bool(source.lines) and not line_end(source.lines[number - 1])
    text = "".join(eol + text if unended else text + eol for text in lines)
    return Piece(source.line_start(number + 1), source.encode(text), indent=indent)


def _reject_elif(source: Source, start: int) -> None:
    if source.tokens[source.token_at(start)].text == "elif":
        raise CannotPlace("the anchor is an `elif`: nothing can stand before or after it")


def _in_one_line_suite(source: Source, place: Place) -> bool:
    """Whether the statement stands on the line of the `if x:` (or the like) it belongs to."""
    assert isinstance(place.node, ast.stmt)
    first, number = source.logical_line(source.span(place.node)[0])
    siblings = [place.node, *(node for node in place.block[: place.index] if node.lineno >= number)]
    return all(source.span(node)[0] != first for node in siblings)


PLACERS: dict[str, Callable[[Source, Edit, Found], list[Piece]]] = {
    "before": before,
    "after": after,
    "wrap": wrap,
    "append": append,
    "base": base,
    IMPORT: import_,
}
