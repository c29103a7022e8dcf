"""What a failed anchor should say: what was looked for, what was found, and what comes close."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable, Sequence

from ..patches.patchmodel import Edit
from ..patches.pattern import Found
from ..syntax.nodes import BLOCK_FIELDS, places
from ..syntax.source import Source
from ..syntax.tree import Tree

SHOWN = 3
LONGEST = 160


def missing_file(file: str, tree: Tree) -> str:
    """The message for a file that does not exist."""
    name = file.rsplit("/", 1)[-1]
    paths = [path for path in tree.paths() if path.endswith(".py")]
    close = [path for path in paths if path.rsplit("/", 1)[-1] == name][:SHOWN]
    close = close or difflib.get_close_matches(file, paths, n=SHOWN, cutoff=0.5)
    return f"{file}: no such file in this upstream; nearest: {_joined(close)}"


def missing_scope(scope: str, source: Source) -> str:
    """The message for a scope that does not exist."""
    names = [name for name in source.scopes if name]
    last = scope.rsplit(".", 1)[-1]
    close = [name for name in names if name.rsplit(".", 1)[-1] == last]
    close += [name for name in difflib.get_close_matches(scope, names, n=SHOWN, cutoff=0.4) if name not in close]
    shown = [f"{name} (line {source.scopes[name][0].node.lineno})" for name in close[:SHOWN]]  # type: ignore[union-attr]
    return f"{source.path}: scope {scope}: not found; nearest: {_joined(shown)}"


def wrong_count(form: Edit, source: Source, hits: Sequence[Found]) -> str:
    """The message for an anchor with too few or too many hits."""
    where = f"{form.file}: scope {form.scope or '(module level)'}"
    anchor = " ".join(form.anchor.split()) or f"class {form.scope}"
    text = f"{where}: `{anchor}`: expected {form.count}, found {len(hits)}"
    if hits:
        lines = ", ".join(str(getattr(hit.node, "lineno", 1)) for hit in hits)
        return f"{text} (line {lines})"
    return f"{text}; nearest:\n" + "\n".join(f"  {line}" for line in _close_statements(form, source))


def _close_statements(form: Edit, source: Source) -> Iterable[str]:
    wanted = " ".join(form.anchor.split())
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(wanted)
    rated: list[tuple[float, int, str]] = []
    for scope in source.scopes[form.scope]:
        for place in places(scope.node):
            assert isinstance(place.node, ast.stmt)
            text = header_text(place.node)
            matcher.set_seq1(text)
            if len(rated) < SHOWN or matcher.quick_ratio() > rated[-1][0]:
                rated.append((matcher.ratio(), place.node.lineno, text))
                rated = sorted(rated, key=lambda item: (-item[0], item[1]))[:SHOWN]
    return [f"{form.file}:{line}: {text}" for _, line, text in rated] or ["(the scope is empty)"]


def header_text(node: ast.stmt) -> str:
    """One line that shows a statement; of a compound one only the header."""
    if isinstance(getattr(node, "body", None), list):
        fields = {name: [] if name in BLOCK_FIELDS else value for name, value in ast.iter_fields(node)}
        node = type(node)(**fields)
        node.body = [ast.Pass()]  # type: ignore[attr-defined]
    text = " ".join(ast.unparse(ast.fix_missing_locations(node)).removesuffix("pass").split())
    return text if len(text) <= LONGEST else text[:LONGEST] + " ..."


def _joined(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "none is close"
