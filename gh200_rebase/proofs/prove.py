"""Proofs that the edits did what they say and nothing else, for every edit of a plan."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..engine.resolve import EditResult, Plan, resolve
from ..patches.imports import bound_name
from ..patches.patchmodel import Patch
from ..patches.verbs import IMPORT, code_nodes
from ..syntax.nodes import deep_trees, places
from ..syntax.source import Source, Unreadable, read_source
from ..syntax.splice import Inserted, Splice, compose
from ..syntax.tree import ChangedTree, Tree
from .calls import call_problems, import_problems, imported_names, self_problems
from .modules import Definition, Imported, Modules, dotted
from .names import Bindings, UndefinedNames
from .placement import Violation, bound_elsewhere, violations
from .removal import Removal, bytes_problem, code_problem, find_own, tree_problem

PROOFS = ("bytes", "compiles", "tree", "names", "calls", "again")


@dataclass(frozen=True)
class Proof:
    """One proof of one edit."""

    edit_key: str
    name: str
    ok: bool
    detail: str


@dataclass(frozen=True)
class PatchedFile:
    """One edited file, before and after, with the edits that were applied to it."""

    path: str
    before: bytes
    after: bytes
    splices: tuple[Splice, ...]
    results: tuple[EditResult, ...]

    @cached_property
    def original(self) -> Source:
        """The file before."""
        return read_source(self.path, self.before)

    @cached_property
    def final(self) -> Source:
        """The file after."""
        return read_source(self.path, self.after)

    @cached_property
    def inserted(self) -> tuple[Inserted, ...]:
        """Where our bytes are."""
        return compose(self.before, self.splices)[1]

    @cached_property
    def removal(self) -> Removal:
        """Our nodes in the new tree."""
        return find_own(self.final, self.inserted)


@deep_trees()
def prove(patches: Sequence[Patch], tree: Tree, plan: Plan, overlay: Tree) -> tuple[Proof, ...]:
    """All proofs of all applied edits, in the plan's order; reads, never runs, upstream's and our code."""
    modules = Modules(overlay, tree)
    again = resolve(patches, ChangedTree(tree, plan.final), with_fingerprints=False)
    second = {result.edit.key: result for result in again.results}
    problems: dict[tuple[str, str], str] = {}
    for file in _patched_files(tree, plan):
        for key, name, detail in _file_problems(file, modules):
            problems.setdefault((key, name), detail)
    for result in plan.applied:
        repeated = second[result.edit.key]
        if repeated.status != "already":
            problems[result.edit.key, "again"] = f"a second application finds it {repeated.status}: {repeated.detail}"
    return tuple(
        Proof(result.edit.key, name, (result.edit.key, name) not in problems, problems.get((result.edit.key, name), ""))
        for result in plan.applied
        for name in PROOFS
    )


@deep_trees()
def check_placements(tree: Tree, plan: Plan) -> tuple[Violation, ...]:
    """Every placement contract that does not hold, in the files as they will be."""
    found: list[Violation] = []
    for file in _patched_files(tree, plan):
        module, removal = file.final.tree, file.removal
        for result in file.results:
            key = result.edit.key
            if result.form.verb != IMPORT:
                found += violations(result.form, key, module, removal.of(key), removal.own)
                continue
            name = bound_name(result.form.code)
            found += [
                Violation(key, file.path, getattr(node, "lineno", 1), f"upstream binds {name} here, our import's name")
                for node in bound_elsewhere(module, name, removal.own)
            ]
    return tuple(found)


def _patched_files(tree: Tree, plan: Plan) -> Iterator[PatchedFile]:
    for path, splices in plan.splices.items():
        results = tuple(result for result in plan.applied if result.form.file == path)
        yield PatchedFile(path, tree.read(path) or b"", plan.final.get(path, b""), splices, results)


def _file_problems(file: PatchedFile, modules: Modules) -> Iterator[tuple[str, str, str]]:
    """(edit, proof, what is wrong) for one file."""
    keys = [result.edit.key for result in file.results]
    shared = [("bytes", bytes_problem(file.before, file.after, file.inserted)), ("compiles", _compile_problem(file))]
    for name, detail in shared:
        if detail:
            yield from ((key, name, f"{file.path}: {detail}") for key in keys)
    try:
        yield from [*_tree_problems(file), *_name_problems(file), *_call_problems(file, modules)]
    except (Unreadable, RecursionError) as error:
        yield from ((key, name, f"{file.path}: {error}") for key in keys for name in ("tree", "names", "calls"))


def _compile_problem(file: PatchedFile) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(file.after, file.path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return f"does not compile: {error}"
    return ""


def _tree_problems(file: PatchedFile) -> Iterator[tuple[str, str, str]]:
    """All edits of the file are removed at once; only if that fails, each is tried alone to name the culprit."""
    whole = tree_problem(file.original.tree, file.final.tree, file.removal)
    for result in file.results:
        own = file.removal.of(result.edit.key)
        problem = code_problem(result.form, own, file.removal, len(result.hits))
        if not problem and whole:
            problem = _alone(file, result) if len(file.results) > 1 else whole
        if problem:
            yield result.edit.key, "tree", f"{file.path}: {problem}"


def _alone(file: PatchedFile, result: EditResult) -> str:
    after, inserted = compose(file.before, [item for item in file.splices if item.edit == result.edit.key])
    try:
        final = read_source(file.path, after)
    except Unreadable as error:
        return str(error)
    return tree_problem(file.original.tree, final.tree, find_own(final, inserted))


def _name_problems(file: PatchedFile) -> Iterator[tuple[str, str, str]]:
    scopes = {result.form.scope for result in file.results}
    own = [item.node for item in file.removal.own]
    before, after = UndefinedNames(file.original, scopes), UndefinedNames(file.final, scopes, own)
    new = after.more_than(before)
    bound = Bindings(file.final)
    for result in file.results:
        mine = file.removal.of(result.edit.key)
        lines = {line for item in mine for line in range(item.node.lineno, item.node.end_lineno + 1)}  # type: ignore[attr-defined]
        elsewhere = {line for item in file.removal.own for line in [item.node.lineno]} - lines  # type: ignore[attr-defined]
        names = {name for name, line in new if line in lines or line not in elsewhere}
        names |= set(bound.unbound(result.form, mine))
        if names:
            place = result.form.scope or "(module level)"
            yield result.edit.key, "names", f"{file.path}: {place}: no value yet for {', '.join(sorted(names))}"


def _call_problems(file: PatchedFile, modules: Modules) -> Iterator[tuple[str, str, str]]:
    top = imported_names(file.path, (place.node for place in places(file.final.tree)))
    hooks = _base_classes(file, top, modules)
    for result in file.results:
        own = file.removal.of(result.edit.key)
        around = [node for item in own for node in item.around[-1:]]
        local = imported_names(file.path, (place.node for node in around for place in places(node)))
        code = code_nodes(result.form)
        inside = imported_names(file.path, (node for root in code for node in ast.walk(root)))
        found = [
            *import_problems(file.path, (node for root in code for node in ast.walk(root)), modules),
            *call_problems(code, top | local | inside, modules),
            *self_problems(result.form, own, hooks.get(result.form.scope.split(".")[0], []), modules),
        ]
        for _, problem in found:
            yield result.edit.key, "calls", f"{file.path}: {problem}"


def _base_classes(file: PatchedFile, names: dict[str, Imported], modules: Modules) -> dict[str, list[Definition]]:
    """The overlay classes the patches make bases, by the class that gets them."""
    found: dict[str, list[Definition]] = {}
    for result in file.results:
        if result.form.verb != "base":
            continue
        parts = dotted(ast.parse(result.form.code.strip(), mode="eval").body)
        start = modules.follow(names[parts[0]]) if parts and parts[0] in names else None
        base = modules.walk(start, parts[1:])[0] if start else None
        if base and isinstance(base.node, ast.ClassDef):
            found.setdefault(result.form.scope, []).append(base)
    return found
