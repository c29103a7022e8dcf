"""Variables that upstream calls by another name now: read off statements that are the same but for the name."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache

from ..patches.patchmodel import Edit
from ..syntax.nodes import header_dump, own_nodes, places


def renamed(old: ast.AST, new: ast.AST, names: Iterable[str]) -> dict[str, str]:
    """For each name of the old scope its most likely name in the new one; names without a trace are left out."""
    votes: dict[str, Counter[str]] = {name: Counter() for name in names}
    alike: dict[str, list[tuple[str, ...]]] = {}
    for shape, after in _shapes(new):
        alike.setdefault(shape, []).append(after)
    for shape, before in _shapes(old):
        if votes.keys() & set(before):
            for after in alike.get(shape, ()):
                agreeing = sum(one == other for one, other in zip(before, after, strict=False))
                for one, other in zip(before, after, strict=False):
                    if one in votes:
                        votes[one][other] += 1 + agreeing
    return {name: counter.most_common(1)[0][0] for name, counter in votes.items() if counter}


@lru_cache(maxsize=4096)
def _shapes(scope: ast.AST) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Each statement of a scope without its variables, and the variables."""
    return tuple((_nameless(place.node), _names(place.node)) for place in places(scope))


def _names(node: ast.AST) -> tuple[str, ...]:
    return tuple(part.id for part in own_nodes(node) if isinstance(part, ast.Name))


def _nameless(node: ast.AST) -> str:
    """The statement's text with every variable the same."""
    parts = [part for part in own_nodes(node) if isinstance(part, ast.Name)]
    kept = [part.id for part in parts]
    try:
        for part in parts:
            part.id = "_"
        return header_dump(node)
    finally:
        for part, name in zip(parts, kept, strict=True):
            part.id = name


def rename_code(code: str, names: Mapping[str, str], mode: str = "exec") -> str:
    """The same text with variables renamed; attributes and strings of that name stay."""
    try:
        tree = ast.parse(code.strip(), mode=mode)
    except SyntaxError:
        return code
    lines = code.strip().encode().split(b"\n")
    found = [part for part in ast.walk(tree) if isinstance(part, ast.Name) and names.get(part.id, part.id) != part.id]
    for part in sorted(found, key=lambda part: (part.lineno, part.col_offset), reverse=True):
        line, end = lines[part.lineno - 1], part.end_col_offset or 0
        lines[part.lineno - 1] = line[: part.col_offset] + names[part.id].encode() + line[end:]
    return b"\n".join(lines).decode()


def rename_edit(form: Edit, names: Mapping[str, str]) -> Edit:
    """A form of the edit for a place where these variables have other names."""
    if all(old == new for old, new in names.items()):
        return form
    code = form.code
    if form.verb == "append":
        wrapped = rename_code("{" + code + "\n}", names, "eval")
        code = wrapped[1:-1].rstrip()
    else:
        code = rename_code(code, names)
    return replace(
        form,
        code=code,
        anchor=rename_code(form.anchor, names),
        last_stored=tuple(names.get(name, name) for name in form.last_stored),
        after_every=tuple(rename_code(text, names) for text in form.after_every),
        before_any=tuple(rename_code(text, names) for text in form.before_any),
    )
