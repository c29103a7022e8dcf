"""Upstream's functions that our code repeats, replaces, wraps or bypasses (`stands_for`), and a digest of each."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ..engine.files import condition_holds
from ..engine.fingerprint import digest
from ..engine.nearest import missing_file, missing_scope
from ..engine.plan import EditResult
from ..patches.patchmodel import Patch
from ..syntax.nodes import deep_trees, dump
from ..syntax.source import Unreadable, read_source
from ..syntax.tree import Tree
from .modules import defined_in
from .uses import Uses


@dataclass(frozen=True)
class Body:
    """A declared function; `ours` names the entries that declare it, each with its reason."""

    file: str
    scope: str
    ours: str
    line: int = 0
    digest: str = ""
    problem: str = ""
    is_missing: bool = False
    """Not in this upstream, which every entry that declares it allows (`only_if`)."""

    @property
    def key(self) -> str:
        """Its key in the lock."""
        return f"{self.file}#{self.scope}"


@deep_trees()
def find_bodies(patches: Sequence[Patch], results: Sequence[EditResult], tree: Tree) -> tuple[Body, ...]:
    """What the expectations of `patches` and the edits of `results` stand for in this upstream."""
    ours: dict[tuple[str, str], list[str]] = {}
    present: set[tuple[str, str]] = set()
    optional = {
        (item.file, scope) for patch in patches for item in patch.expects if item.only_if for scope in item.stands_for
    }
    for file, scopes, entry, is_present in (*_of_edits(results), *_of_expectations(patches, tree)):
        for scope in scopes:
            ours.setdefault((file, scope), []).append(entry)
            present |= {(file, scope)} if is_present else set()
    return tuple(
        _body(*place, "; ".join(entries), tree)
        if place in present and not (place in optional and _is_absent(*place, tree))
        else Body(*place, "; ".join(entries), is_missing=True)
        for place, entries in ours.items()
    )


def _of_edits(results: Sequence[EditResult]) -> Iterator[tuple[str, tuple[str, ...], str, bool]]:
    for result in results:
        if result.status in ("applied", "already"):
            yield result.form.file, result.form.stands_for, f"edit {result.edit.key} ({result.edit.why})", True


def _of_expectations(patches: Sequence[Patch], tree: Tree) -> Iterator[tuple[str, tuple[str, ...], str, bool]]:
    for patch in patches:
        for item in patch.expects:
            entry = f"{patch.path.name}, expect {item.name} ({item.why})"
            yield item.file, item.stands_for, entry, condition_holds(item.only_if, item.file, tree)


def _is_absent(file: str, scope: str, tree: Tree) -> bool:
    try:
        uses = _uses(file, scope, tree)
        return uses is None or not uses.has(scope)
    except Unreadable:
        return False


def _body(file: str, scope: str, ours: str, tree: Tree) -> Body:
    try:
        uses = _uses(file, scope, tree)
        if uses is None:
            return Body(file, scope, ours, problem=missing_file(file, tree))
        if not uses.has(scope):
            return Body(file, scope, ours, problem=missing_scope(scope, uses.source))
    except Unreadable as error:
        return Body(file, scope, ours, problem=f"{file}: {error}")
    parts = uses.of(scope)
    text = "\n".join(f"{name} {dump(node)}" for name in sorted(parts) for node in parts[name])
    return Body(file, scope, ours, line=getattr(parts[scope][0], "lineno", 1), digest=digest(text))


def text_of(body: Body, tree: Tree) -> list[str]:
    """The function and what it uses, as lines to compare by eye; empty if this tree has no such function."""
    uses = _uses(body.file, body.scope, tree)
    parts = uses.of(body.scope) if uses and uses.has(body.scope) else {}
    return [line for name in sorted(parts) for node in parts[name] for line in ast.unparse(node).splitlines()]


def _uses(file: str, scope: str, tree: Tree) -> Uses | None:
    """The declared file, or the one that a shim in it takes the name from."""
    data = tree.read(file)
    if data is None:
        return None
    uses = _of_file(file, data)
    path = file if uses.has(scope) else defined_in(file, scope, tree)
    return uses if path == file else _of_file(path, tree.read(path) or b"")


@lru_cache(maxsize=32)
def _of_file(file: str, data: bytes) -> Uses:
    return Uses(read_source(file, data))
