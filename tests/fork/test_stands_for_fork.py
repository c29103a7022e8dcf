"""The real upstream, one declared function changed: the rebase stops for review and names both sides. None is undeclared."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest
from tiny import PRISTINE

from gh200_lab.place import ROOT
from gh200_rebase.engine.resolve import EditResult, resolve
from gh200_rebase.lock.drift import REVIEW, find_drift, observe
from gh200_rebase.patches.lockfile import Lock, build
from gh200_rebase.project import Project
from gh200_rebase.proofs.bodies import Body, find_bodies
from gh200_rebase.proofs.modules import Definition, Modules, module_name
from gh200_rebase.proofs.signatures import methods
from gh200_rebase.syntax.nodes import FUNCTIONS
from gh200_rebase.syntax.source import read_source
from gh200_rebase.syntax.tree import ChangedTree, FolderTree

pytestmark = pytest.mark.integration
PROJECT = Project(ROOT)
UPSTREAM = FolderTree(PRISTINE)
# Methods of Accelerate's objects, which have upstream's names by chance, and of Python's.
ELSEWHERE = {"backward", "log", "persistent_load"}


@cache
def results() -> tuple[EditResult, ...]:
    return resolve(PROJECT.patches, UPSTREAM).results


@cache
def bodies() -> dict[str, Body]:
    return {body.key: body for body in find_bodies(PROJECT.patches, results(), UPSTREAM)}


@cache
def lock() -> Lock:
    return build({"1.0": ("", observe("1.0", (), list(bodies().values())))})


def declared() -> list[str]:
    forms = [form for patch in PROJECT.patches for edit in patch.edits for form in edit.forms()]
    entries = [*forms, *(item for patch in PROJECT.patches for item in patch.expects)]
    return sorted({f"{entry.file}#{scope}" for entry in entries for scope in entry.stands_for})


def mutated(file: str, scope: str) -> bytes:
    """The file with one more statement at the beginning of the function."""
    source = read_source(file, UPSTREAM.read(file) or b"")
    first = source.scopes[scope][0].node.body[0]
    at = source.offset(first.lineno, first.col_offset)
    own_line = not source.data[source.line_start(first.lineno) : at].strip()
    more = f"mutant = 1\n{' ' * first.col_offset}" if own_line else "mutant = 1; "
    return source.data[:at] + more.encode() + source.data[at:]


@pytest.mark.parametrize("key", declared())
def test_a_changed_function_is_to_review_and_ours_is_named(key: str) -> None:
    if key not in bodies():
        pytest.skip("declared by a form of an edit that another release needs")
    body = bodies()[key]
    assert not body.problem
    changed = ChangedTree(UPSTREAM, {body.file: mutated(body.file, body.scope)})
    found = {
        drift.edit_key: drift
        for drift in find_drift(lock(), "2.0", (), find_bodies(PROJECT.patches, results(), changed))
    }
    assert found[key].level == REVIEW and f"ours: {body.ours}" in found[key].what


@cache
def upstream_functions() -> frozenset[str]:
    texts = ((PRISTINE / path).read_text(encoding="utf-8") for path in _package())
    return frozenset(name for text in texts for name in re.findall(r"^\s+(?:async )?def (\w+)", text, re.MULTILINE))


def _package() -> list[str]:
    return [path.relative_to(PRISTINE).as_posix() for path in (PRISTINE / "simpletuner").rglob("*.py")]


def _overlay() -> Iterator[tuple[str, ast.Module]]:
    for path in PROJECT.overlay.paths():
        if path.startswith("simpletuner/") and path.endswith(".py"):
            yield path, read_source(path, PROJECT.overlay.read(path) or b"").tree


def test_what_our_subclasses_override_is_declared() -> None:
    modules = Modules(PROJECT.overlay, UPSTREAM)
    undeclared = []
    for path, tree in _overlay():
        module = modules.find(module_name(path))
        for node in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
            own = set(methods(node))
            for base in modules.bases(Definition(module, node)):
                if not (base and base.module and isinstance(base.node, ast.ClassDef)):
                    continue
                if modules.in_overlay(base.module.name):
                    own |= set(methods(base.node))  # a class of ours before upstream's
                else:
                    names = own & set(methods(base.node)) - {"__init__"}
                    undeclared += [f"{base.module.path}#{base.node.name}.{name}" for name in sorted(names)]
    assert set(undeclared) - set(declared()) == set()


def test_a_function_set_on_an_upstream_object_is_declared() -> None:
    """Overrides of StandIn are checked in tests/unit/test_stands_for.py; this finds plain assignments."""
    names = {key.rpartition("#")[2].rpartition(".")[2] for key in declared()} | ELSEWHERE
    found = [
        f"{path}:{node.lineno}: {ast.unparse(target)}"
        for path, tree in _overlay()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute) and ast.unparse(target.value) not in ("self", "cls")
        if target.attr in upstream_functions() - names and _is_function(node.value, tree)
    ]
    assert found == []


def _is_function(value: ast.expr, tree: ast.Module) -> bool:
    functions = {node.name for node in ast.walk(tree) if isinstance(node, FUNCTIONS)}
    values = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    name = value.attr if isinstance(value, ast.Attribute) else value.id if isinstance(value, ast.Name) else ""
    return isinstance(value, ast.Lambda) or name in functions - values
