"""What each verb of an edit demands of its anchor, scope and code, checked before any upstream is read."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from .patchmodel import Edit
from .pattern import Pattern, PatternError, compile_pattern, is_hole

UPSTREAM = "__upstream__"
IMPORT = "import"
"""The verb of edits that no patch file writes: they follow from a patch's `imports`."""
DISPLAYS = (ast.Dict, ast.List, ast.Set, ast.Tuple)
SCOPE_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True)
class Verb:
    """What a verb demands of an edit."""

    anchor: bool
    needs_scope: bool
    check: Callable[[str], str]
    """Says what is wrong with the code, or nothing."""


def tidy(code: str) -> str:
    """Code without its common indentation."""
    return textwrap.dedent(code).strip("\n").rstrip()


@lru_cache(maxsize=1024)
def statements(code: str) -> tuple[ast.stmt, ...]:
    """Code parsed as statements."""
    return tuple(ast.parse(code).body)


@lru_cache(maxsize=1024)
def expression(code: str) -> ast.expr:
    """Code parsed as one expression."""
    return ast.parse(code.strip(), mode="eval").body


@lru_cache(maxsize=1024)
def elements(code: str) -> ast.Dict | ast.Set | ast.List:
    """The code of an `append` as a display of its own."""
    for text in ("{" + code + "\n}", "[" + code + "\n]"):
        try:
            node = ast.parse(text, mode="eval").body
        except SyntaxError:
            continue
        if isinstance(node, ast.Dict | ast.Set | ast.List):
            return node
    raise SyntaxError("not the elements of a dict, list, set or tuple")


def code_nodes(form: Edit) -> tuple[ast.AST, ...]:
    """The patch's own code as nodes."""
    if form.verb == "append":
        return (elements(form.code),)
    return (expression(form.code),) if form.verb in ("wrap", "base") else statements(form.code)


def used_names(form: Edit) -> set[str]:
    """Names that the code mentions."""
    return {part.id for node in code_nodes(form) for part in ast.walk(node) if isinstance(part, ast.Name)}


def needed_names(form: Edit) -> set[str]:
    """What the code finds in its place: names it uses and does not bind itself, and those it says were stored."""
    parts = [part for node in code_nodes(form) for part in ast.walk(node)]
    own = {part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    own |= {alias.asname or alias.name for part in parts if isinstance(part, ast.ImportFrom) for alias in part.names}
    return {*form.last_stored, *(used_names(form) - own - {UPSTREAM})}


def _checked(parse: Callable[[str], object], rule: Callable[[object], str]) -> Callable[[str], str]:
    def check(code: str) -> str:
        try:
            return rule(parse(code))
        except (SyntaxError, ValueError) as error:
            return f"code is not Python: {error}"

    return check


def _only(allowed: tuple[type[ast.stmt], ...], what: str) -> Callable[[object], str]:
    def rule(body: object) -> str:
        assert isinstance(body, tuple)
        if not body:
            return "code has no statement"
        return "" if all(isinstance(node, allowed) for node in body) else f"code must be {what} only"

    return rule


def _one_hole(node: object) -> str:
    assert isinstance(node, ast.expr)
    holes = sum(isinstance(part, ast.Name) and part.id == UPSTREAM for part in ast.walk(node))
    return "" if holes == 1 else f"code must hold the name {UPSTREAM} exactly once, has it {holes} times"


def _not_empty(node: object) -> str:
    assert isinstance(node, ast.Dict | ast.Set | ast.List)
    return "" if (node.values if isinstance(node, ast.Dict) else node.elts) else "code has no element"


_ANY = _checked(statements, _only((ast.stmt,), "statements"))

VERBS: dict[str, Verb] = {
    "before": Verb(True, False, _ANY),
    "after": Verb(True, False, _ANY),
    "wrap": Verb(True, False, _checked(expression, _one_hole)),
    "append": Verb(True, False, _checked(elements, _not_empty)),
    "base": Verb(False, True, _checked(expression, lambda node: "")),
}


def problems_of(form: Edit) -> list[str]:
    """All that is wrong with one complete form of an edit."""
    verb = VERBS[form.verb]
    found = [verb.check(form.code)]
    if form.scope and not SCOPE_NAME.fullmatch(form.scope):
        found.append(f"scope {form.scope!r} is not a dotted name")
    if verb.needs_scope and not form.scope:
        found.append(f"{form.verb} needs a scope that names a class")
    if not verb.anchor:
        found.append(f"{form.verb} takes no anchor" if form.anchor else "")
    elif not form.anchor:
        found.append(f"{form.verb} needs an anchor")
    else:
        found.append(_anchor_problem(form))
    return [text for text in found if text]


def contract_problem(key: str, value: str) -> str:
    """What is wrong with one item of a placement contract, or nothing."""
    if key == "last_stored":
        return "" if value.isidentifier() else f"{value!r} is not a name"
    if key == "stored_once":
        return "" if SCOPE_NAME.fullmatch(value) and "." in value else f"{value!r} is not an attribute such as self.x"
    try:
        compile_pattern(value)
    except PatternError as error:
        return f"{value!r}: {error}"
    return ""


def _anchor_problem(form: Edit) -> str:
    try:
        pattern = compile_pattern(form.anchor)
    except PatternError as error:
        return f"anchor {form.anchor.strip()!r}: {error}"
    if form.verb == "wrap" and not pattern.is_expression:
        return "wrap needs an anchor that is an expression"
    if form.verb == "append" and not _may_be_display(pattern):
        return "append needs an anchor that is a dict, list, set or tuple, or an assignment of one"
    return ""


def _may_be_display(pattern: Pattern) -> bool:
    value = pattern.node
    if isinstance(value, ast.Assign | ast.AnnAssign | ast.Return):
        return value.value is not None and (is_hole(value.value) or isinstance(value.value, DISPLAYS))
    return isinstance(value, DISPLAYS)
