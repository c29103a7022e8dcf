"""Insertions inside a statement: around an expression, into a display, into a class header."""

from __future__ import annotations

import ast
import bisect
import re

from ..patches.patchmodel import Edit
from ..patches.pattern import Found
from ..patches.verbs import DISPLAYS, UPSTREAM, elements, expression
from ..syntax.nodes import expressions, same
from ..syntax.source import SPACING, Source, Token, line_end
from ..syntax.splice import CannotPlace, Piece

# Expressions that need no parentheses wherever they stand.
PRIMARIES = (ast.Call, ast.Attribute, ast.Subscript, ast.Name, ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp)
# Expressions that need parentheses even as the argument of a call.
LOOSE = (ast.Tuple, ast.NamedExpr, ast.Yield, ast.YieldFrom, ast.Await)


def display_of(node: ast.AST) -> ast.expr | None:
    """The display an `append` anchor means: the node itself, or the value it assigns or returns."""
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.Return) and node.value is not None:
        node = node.value
    is_target = isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)
    return node if isinstance(node, DISPLAYS) and not is_target else None


def wrap(source: Source, form: Edit, found: Found) -> list[Piece]:
    """Insert our expression around the anchored one."""
    node = found.node
    assert isinstance(node, ast.expr)
    start, end = source.span(node)
    _check_captured(source, found.place.node, node, start, end)
    code = form.code.strip()
    outer = expression(code)
    hole = next(part for part in ast.walk(outer) if isinstance(part, ast.Name) and part.id == UPSTREAM)
    opening, closing = _split(code, hole)
    as_argument = any(isinstance(part, ast.Call) and _is_argument(part, hole) for part in ast.walk(outer))
    if not isinstance(node, PRIMARIES) and (not as_argument or isinstance(node, LOOSE)):
        opening, closing = opening + "(", ")" + closing
    if not isinstance(outer, PRIMARIES) and outer.col_offset == 0:
        opening, closing = "(" + opening, closing + ")"
    opening, closing = (text.replace("\n", source.eol) for text in (opening, closing))
    region = (start, end)
    return [
        Piece(start, source.encode(opening), "open", region=region),
        Piece(end, source.encode(closing), "close", region=region),
    ]


def _check_captured(source: Source, statement: ast.AST, node: ast.expr, start: int, end: int) -> None:
    for part in expressions(statement):
        is_bare = isinstance(part, ast.Call) and part.args == [node] and source.span(part)[1] == end
        if is_bare and isinstance(node, ast.GeneratorExp):
            raise CannotPlace("the generator expression uses the parentheses of the call it is the argument of")
    text = source.data[start:end].decode(source.encoding)
    try:
        alone = ast.parse(f"({text}\n)", mode="eval").body
    except SyntaxError:
        alone = None
    if alone is None or not same(alone, node):
        raise CannotPlace("the text at the anchor's position is not the anchor by itself")


def _split(code: str, hole: ast.Name) -> tuple[str, str]:
    lines = code.encode().split(b"\n")
    at = sum(len(line) + 1 for line in lines[: hole.lineno - 1]) + hole.col_offset
    return code.encode()[:at].decode(), code.encode()[at + len(UPSTREAM) :].decode()


def _is_argument(call: ast.Call, hole: ast.expr) -> bool:
    return hole in call.args or any(keyword.value is hole for keyword in call.keywords)


def append(source: Source, form: Edit, found: Found) -> list[Piece]:
    """Insert our element at the end of the anchored display."""
    display = display_of(found.node)
    assert display is not None
    ours = elements(form.code)
    if isinstance(display, ast.Dict) != isinstance(ours, ast.Dict):
        raise CannotPlace(f"the anchor is a {type(display).__name__.lower()}, our code is not its element")
    start, end = source.span(display)
    bracketed = _is_bracketed(source, start, end)
    code = form.code.strip().rstrip(",")
    items = display.values if isinstance(display, ast.Dict) else display.elts  # type: ignore[attr-defined]
    if not items:
        return [Piece(start + 1, source.encode(code + "," * isinstance(display, ast.Tuple)))]
    tail = _tail(source, source.span(items[-1])[1], end - bracketed)
    item_end = max([source.span(items[-1])[1], *(token.end for token in tail if token.text == ")")])
    comma = next((token for token in tail if token.text == ","), None)
    last_line = max([items[-1].end_lineno or 0, *(token.line for token in tail)])
    if bracketed and last_line < (display.end_lineno or 0):
        pieces = [] if comma else [Piece(item_end, b",", "comma")]
        indent = re.match(r"[ \t]*", source.lines[items[-1].lineno - 1])
        eol = line_end(source.lines[last_line - 1])
        text = "".join((indent[0] if indent else "") + line + eol for line in (code + ",").split("\n"))
        return [*pieces, Piece(source.line_start(last_line + 1), source.encode(text))]
    if "\n" in code and not bracketed:
        raise CannotPlace("the anchor has no brackets: our element must be one line")
    code = code.replace("\n", source.eol)
    return [Piece(comma.end, source.encode(f" {code},")) if comma else Piece(item_end, source.encode(f", {code}"))]


def _tail(source: Source, start: int, end: int) -> list[Token]:
    """What stands between a display's last element and its end: closing parentheses and a comma."""
    low, high = (bisect.bisect_left(source.token_starts, offset) for offset in (start, end))
    return [token for token in source.tokens[low:high] if token.kind not in SPACING]


def _is_bracketed(source: Source, start: int, end: int) -> bool:
    """A tuple may have none, and `(a), (b)` only looks as if it had."""
    depth = 0
    for token in source.tokens[source.token_at(start) :]:
        depth += (token.text in "([{") - (token.text in ")]}") if len(token.text) == 1 else 0
        if depth == 0:
            return token.end == end and token.start != start
    return False


def base(source: Source, form: Edit, found: Found) -> list[Piece]:
    """Insert our base class into the class header."""
    assert isinstance(found.node, ast.ClassDef)
    header = source.following(source.offset(found.node.lineno, found.node.col_offset))
    depth = index = 0
    # The name may be followed by type parameters, which have brackets and colons of their own.
    while depth or header[index].text not in ("(", ":"):
        depth += (header[index].text == "[") - (header[index].text == "]")
        index += 1
    code = form.code.strip().replace("\n", source.eol)
    if header[index].text == ":":
        return [Piece(header[index - 1].end, source.encode(f"({code})"), "base")]
    first = header[index + 1]
    separator = "" if first.text == ")" else ", "
    return [Piece(first.start, source.encode(code + separator), "base")]
