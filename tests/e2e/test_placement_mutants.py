"""The real upstream, changed so that an edit lands where it is ineffective or harmful: a contract reports it, with the line."""

from __future__ import annotations

import ast
from dataclasses import replace
from functools import cache

import pytest
from placement_mutants import DATAFLOW, HARMLESS, ORDER, UNREACHED, Mutant, Step
from tiny import PRISTINE

from gh200_lab.place import ROOT
from gh200_rebase.engine.placing import PLACERS
from gh200_rebase.engine.resolve import resolve
from gh200_rebase.patches.patchfile import Edit, Patch
from gh200_rebase.patches.pattern import compile_pattern, find
from gh200_rebase.project import Project
from gh200_rebase.proofs.placement import Violation
from gh200_rebase.proofs.prove import check_placements
from gh200_rebase.syntax.source import Source, read_source
from gh200_rebase.syntax.splice import Splice, compose
from gh200_rebase.syntax.tree import MemoryTree

PATCHES = {edit.key: (patch, edit) for patch in Project(ROOT).patches for edit in patch.edits}


def in_functions() -> list[str]:
    lower = ((key, edit.scope.rpartition(".")[2]) for key, (_, edit) in PATCHES.items())
    return [key for key, name in lower if name and not name[0].isupper()]


def defined_again(key: str) -> Mutant:
    owner, _, name = PATCHES[key][1].scope.rpartition(".")
    step = ("after", owner, f"def {name}():\n    ...", f"def {name}(*args, **kwargs):\n    pass")
    return Mutant(key, "defined_again", (step,))


def left_before(key: str, how: str) -> Mutant:
    edit = PATCHES[key][1]
    return Mutant(key, f"left_before_{how}", (("before", edit.scope, edit.anchor, how),))


MUTANTS = [
    *(defined_again(key) for key in in_functions()),
    *(left_before(key, how) for key in in_functions() for how in ("return", "raise")),
    *ORDER,
    *DATAFLOW,
    *UNREACHED,
]


def _owners(source: Source, name: str) -> list[object]:
    parts = name.split(".")[:-1]
    return [place.node for end in range(1, len(parts) + 1) for place in source.scopes[".".join(parts[:end])]]


@cache
def pristine(file: str) -> bytes:
    """The real file; bodies of functions that no edit is in are left out, or each mutant would take seconds."""
    source = read_source(file, (PRISTINE / file).read_bytes())
    scopes = {edit.scope for _, edit in PATCHES.values() if edit.file == file}
    spans = []
    for name, found in source.scopes.items():
        holds_edit = any(f"{scope}.".startswith(f"{name}.") for scope in scopes)
        nested = any(isinstance(owner, ast.FunctionDef) for owner in _owners(source, name))
        bodies = [place.node.body for place in found if isinstance(place.node, ast.FunctionDef)]
        if not holds_edit and not nested:
            spans += [(source.span(body[0])[0], source.span(body[-1])[1]) for body in bodies]
    data = source.data
    for start, end in sorted(spans, reverse=True):
        data = data[:start] + b"pass" + data[end:]
    return data


def changed(file: str, data: bytes, step: Step) -> bytes:
    verb, scope, anchor, *rest = step
    source = read_source(file, data)
    # Routes of a server are coroutines; a mutant need not say so.
    anchors = [anchor, f"async {anchor}"] if anchor.startswith("def ") else [anchor]
    scopes = [place.node for place in source.scopes[scope]]
    hits = [item for one in anchors for node in scopes for item in find(compile_pattern(one), node)]
    if verb == "drop":
        (found,) = hits
        start, end = source.span(found.place.node)  # type: ignore[arg-type]
        return data[:start] + b"pass" + data[end:]
    edit = Edit(1, "mutant", file, scope, verb, anchor, rest[0], 1, "test", "")
    once = {id(item.place.node): item for item in hits}.values()
    assert once, f"nothing to change: {anchor}"
    pieces = [piece for item in once for piece in PLACERS[verb](source, edit, item)]
    return compose(data, [Splice(piece, edit.key, 1, order) for order, piece in enumerate(pieces)])[0]


def _patch(*edits: Edit, like: Patch | None = None) -> Patch:
    base = like or next(iter(PATCHES.values()))[0]
    return replace(base, edits=edits, imports=base.imports if like else ())


def judged(mutant: Mutant) -> tuple[list[Violation], list[str]]:
    """The violations of the mutant's edit, and the edits that found no place."""
    patch, edit = PATCHES[mutant.edit]
    data = pristine(edit.file)
    for step in mutant.steps:
        data = changed(edit.file, data, step)
    tree = MemoryTree({edit.file: data})
    # What an edit waits for is there in the real release, though not in this one file without bodies.
    here = [replace(other, only_if="") for other in patch.edits if other.file == edit.file]
    plan = resolve([_patch(*here, like=patch)], tree, with_fingerprints=False)
    return [item for item in check_placements(tree, plan) if item.edit_key == mutant.edit], [
        result.edit.key for result in plan.failed
    ]


def name_of(mutant: Mutant) -> str:
    return f"{mutant.edit}-{mutant.name}"


def test_there_are_enough_mutants() -> None:
    """About four for each edit with a place of its own; fewer edits need fewer."""
    assert len(MUTANTS) >= 90
    assert len({name_of(mutant) for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=name_of)
def test_placement_contract_catches(mutant: Mutant) -> None:
    violations, failed = judged(mutant)
    # Two or three change what the anchor itself counts, and are failures already.
    assert violations or mutant.edit in failed, f"no violation reported; failed: {failed}"
    assert all(item.line > 0 and item.what for item in violations)


@pytest.mark.parametrize("mutant", HARMLESS, ids=name_of)
def test_placement_contract_lets_pass(mutant: Mutant) -> None:
    violations, failed = judged(mutant)
    assert (violations, failed) == ([], [])
