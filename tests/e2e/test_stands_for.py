"""The real upstream, one declared function changed: the rebase stops for review and names both sides. None is undeclared."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest
from tiny import PRISTINE

from gh200_lab.place import ROOT
from gh200_rebase.engine.resolve import EditResult, resolve
from gh200_rebase.errors import EXIT_DRIFT, DriftFound
from gh200_rebase.lock.assess import Assessment
from gh200_rebase.lock.drift import find_drift, observe
from gh200_rebase.patches.lockfile import Lock, build
from gh200_rebase.patches.patchmodel import Edit, Expect
from gh200_rebase.project import Project
from gh200_rebase.proofs.bodies import Body, find_bodies
from gh200_rebase.proofs.modules import Definition, Modules, module_name
from gh200_rebase.proofs.overrides import ELSEWHERE as ELSEWHERE_CLASSES
from gh200_rebase.proofs.overrides import overrides
from gh200_rebase.proofs.signatures import methods
from gh200_rebase.syntax.nodes import DEFS, FUNCTIONS
from gh200_rebase.syntax.source import read_source
from gh200_rebase.syntax.tree import ChangedTree, DirectoryTree, MemoryTree

PROJECT = Project(ROOT)
UPSTREAM = DirectoryTree(PRISTINE)
# Methods of Accelerate's objects, which have upstream's names by chance, and of Python's.
ELSEWHERE = {"backward", "log", "persistent_load"}
# Of tensors and of tqdm; the ends of the names of keys (rank_check).
OF_OTHER_LIBRARIES = {"_version", "_instances", "_config", "_path"}


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


def added(node: ast.FunctionDef) -> bool:
    node.body.insert(0, ast.parse("mutant = 1").body[0])
    return True


def removed(node: ast.FunctionDef) -> bool:
    node.body[-1] = ast.parse("mutant" if isinstance(node.body[-1], ast.Pass) else "pass").body[0]
    return True


def changed_constant(node: ast.FunctionDef) -> bool:
    """The last number or truth value."""
    found = [part for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, int | float)]
    if found:
        found[-1].value = 1000 + found[-1].value
    return bool(found)


def flipped_condition(node: ast.FunctionDef) -> bool:
    found = [part for part in ast.walk(node) if isinstance(part, ast.If | ast.IfExp | ast.While)]
    if found:
        found[-1].test = ast.UnaryOp(ast.Not(), found[-1].test)
    return bool(found)


KINDS = (added, removed, changed_constant, flipped_condition)


def mutants(file: str, scope: str) -> Iterator[bytes]:
    """The file with a changed function, or with a changed value of a name that is none."""
    data = UPSTREAM.read(file) or b""
    lines = data.decode().splitlines(keepends=True)
    for kind in KINDS:
        place = next(iter(read_source(file, data).reparsed().scopes.get(scope, ())), None)
        if place is None:
            yield data + f"\n{scope} = {kind.__name__!r}\n".encode()
        elif kind(place.node):
            first = min([place.node.lineno, *(mark.lineno for mark in place.node.decorator_list)])
            text = textwrap.indent(ast.unparse(ast.fix_missing_locations(place.node)), " " * place.node.col_offset)
            yield "".join([*lines[: first - 1], text, "\n", *lines[place.node.end_lineno :]]).encode()


@pytest.mark.parametrize("key", declared())
def test_a_changed_function_stops_the_rebase_and_ours_is_named(key: str) -> None:
    if key not in bodies():
        pytest.skip("declared by a form of an edit that another release needs")
    body = bodies()[key]
    assert not body.problem
    # Only what declares this function: the digests of all others would be made again for each mutant.
    patches = [
        replace(patch, expects=tuple(item for item in patch.expects if key in _keys(item))) for patch in PROJECT.patches
    ]
    edits = [result for result in results() if key in _keys(result.form)]
    tried = 0
    for data in mutants(body.file, body.scope):
        found = find_bodies(patches, edits, ChangedTree(UPSTREAM, {body.file: data}))
        drift = tuple(one for one in find_drift(lock(), "2.0", (), found) if one.edit_key == key)
        with pytest.raises(DriftFound) as stopped:
            replace(assessed(), drift=drift).require(accept_drift=False)
        assert stopped.value.exit_code == EXIT_DRIFT
        assert key in str(stopped.value.where) and f"ours: {body.ours}" in str(stopped.value.where)
        tried += 1
    assert tried >= 2


def assessed() -> Assessment:
    return Assessment("upstream", "2.0", resolve((), UPSTREAM), (), (), (), ())


def _keys(entry: Edit | Expect) -> set[str]:
    return {f"{entry.file}#{scope}" for scope in entry.stands_for}


@cache
def upstream_functions() -> frozenset[str]:
    return _upstream_names(r"^\s+(?:async )?def (\w+)")


@cache
def upstream_private_names() -> frozenset[str]:
    value = r"[ \t]*(?::[^=\n]+)?=[^=]"
    return _upstream_names(rf"^\s*(?:async )?(?:def|class) (_[a-zA-Z]\w*)|(?:\bself\.|\bcls\.|^)(_[a-zA-Z]\w*){value}")


@cache
def _upstream_names(pattern: str) -> frozenset[str]:
    texts = (path.read_text(encoding="utf-8") for path in (PRISTINE / "simpletuner").rglob("*.py"))
    return frozenset("".join(found.groups(default="")) for text in texts for found in re.finditer(pattern, text, re.M))


def _overlay() -> Iterator[tuple[str, ast.Module]]:
    for path in PROJECT.overlay.paths():
        if path.startswith("simpletuner/") and path.endswith(".py"):
            yield path, read_source(path, PROJECT.overlay.read(path) or b"").tree


def test_what_our_subclasses_override_is_declared() -> None:
    modules = Modules(PROJECT.overlay, UPSTREAM)
    undeclared = set()
    for path, tree in _overlay():
        module = modules.find(module_name(path))
        for node in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
            bases = [base for base in modules.bases(Definition(module, node)) if base]
            names = set(methods(node)).union(*(_own_methods(base, modules) for base in bases))
            for name in names - {"__init__"}:
                undeclared |= {key for base in bases for key in _defining(base, name, modules)}
    assert "simpletuner/helpers/data_backend/local.py#LocalDataBackend.read" in undeclared
    assert undeclared - set(declared()) == set()


def _own_methods(base: Definition, modules: Modules) -> set[str]:
    """Those of a class of ours that stands before upstream's among the bases."""
    ours = base.module is not None and modules.in_overlay(base.module.name) and isinstance(base.node, ast.ClassDef)
    return set(methods(base.node)) if ours else set()


def _defining(owner: Definition, name: str, modules: Modules) -> Iterator[str]:
    """Where upstream defines the method that objects of this class have."""
    if not isinstance(owner.node, ast.ClassDef) or owner.module is None:
        return
    if name in methods(owner.node) and not modules.in_overlay(owner.module.name):
        yield f"{owner.module.path}#{owner.node.name}.{name}"
    else:
        for base in modules.bases(owner):
            yield from _defining(base, name, modules) if base else ()


@cache
def _upstream_classes() -> dict[str, list[Definition]]:
    """The classes that ours override methods of, by name; several may have one name."""
    wanted = {one.upstream_class for one in overrides(PROJECT.overlay)}
    modules, found = Modules(MemoryTree({}), UPSTREAM), {}
    for path in (PRISTINE / "simpletuner").rglob("*.py"):
        names = re.findall(r"^class (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        for name in set(names) & wanted:
            module = modules.find(module_name(path.relative_to(PRISTINE).as_posix()))
            found.setdefault(name, []).append(Definition(module, module.names[name]))
    return found


def test_an_override_is_declared_for_the_class_that_defines_the_method() -> None:
    """By class and method: another class may have a declared method of the same name."""
    modules = Modules(MemoryTree({}), UPSTREAM)
    undeclared = []
    for one in (one for one in overrides(PROJECT.overlay) if one.upstream_class not in ELSEWHERE_CLASSES):
        owners = _upstream_classes().get(one.upstream_class, [])
        places = {key for owner in owners for key in _defining(owner, one.method, modules)}
        if not owners:  # an override on a module
            places = {key for key in declared() if key.endswith(f"/{one.upstream_class}.py#{one.method}")}
        if not places & set(declared()):
            undeclared.append(f"{one.ours}.{one.method}: {sorted(places)}")
    assert undeclared == []


def test_a_private_name_of_upstream_that_ours_use_is_expected() -> None:
    scopes = {key.rpartition("#")[2] for key in declared()} | {
        item.name for patch in PROJECT.patches for item in patch.expects
    }
    known = {scope.rpartition(".")[2] for scope in scopes} | OF_OTHER_LIBRARIES
    theirs = upstream_private_names() - known
    trees = dict(_overlay())
    own = {path: _own_names(tree) for path, tree in trees.items()}
    everywhere = set().union(*own.values())
    found = [
        f"{path}:{node.lineno}: {name}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        for name in _private_names(node, own[path], everywhere)
        if name in theirs
    ]
    assert found == []


def _private_names(node: ast.AST, own: set[str], everywhere: set[str]) -> list[str]:
    match node:
        case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
            return [name] if name not in everywhere else []
        case ast.Attribute(attr=name):
            return [name] if name not in own else []
        case ast.Constant(value=str(name)):
            return [name] if name not in everywhere else []
        case ast.ImportFrom(module=str(module)) if module.startswith("simpletuner.helpers"):
            return [alias.name for alias in node.names]
    return []


def _own_names(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, DEFS):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found |= {node.attr} if ast.unparse(node.value) in ("self", "cls") else set()
    return found


def test_a_function_set_on_an_upstream_object_is_declared() -> None:
    """Overrides of Overrides are checked in tests/integration/rebase/test_stands_for.py; this finds plain assignments."""
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
