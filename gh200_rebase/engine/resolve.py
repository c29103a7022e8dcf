"""Finds the place of every edit in an upstream and computes the new bytes; writes nothing, raises for no upstream."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..patches.imports import import_edits, imported_by
from ..patches.patchmodel import HAS, Edit, Patch
from ..patches.pattern import Found, compile_pattern, find
from ..patches.verbs import IMPORT, needed_names, used_names
from ..syntax.bound import unbound
from ..syntax.nodes import deep_trees
from ..syntax.source import Source, Unreadable
from ..syntax.splice import CannotPlace, Piece, Splice, compose, conflicts
from ..syntax.tree import Tree
from .files import Files, condition_holds
from .fingerprint import Fingerprint, fingerprint
from .inside import display_of
from .nearest import missing_file, missing_scope, wrong_count
from .ours import Ours, code_of
from .placing import PLACERS
from .plan import EditResult, Hit, Plan

__all__ = ["EditResult", "Fingerprint", "Hit", "Plan", "resolve"]


@dataclass(frozen=True)
class _Attempt:
    """One form tried: `present` counts the hits that already hold our code."""

    form: Edit
    hits: tuple[Hit, ...] = ()
    pieces: tuple[Piece, ...] = ()
    present: int = 0
    problem: str = ""
    fingerprint: Fingerprint | None = None


@deep_trees()
def resolve(patches: Sequence[Patch], tree: Tree, *, with_fingerprints: bool = True, pristine: bool = False) -> Plan:
    """Find the place of every edit and compute the new files."""
    active = [edit for patch in patches for edit in patch.edits if condition_holds(edit.only_if, edit.file, tree)]
    possible = [edit for patch in patches for edit in import_edits(patch, _forms_of(patch, active))]
    imported = frozenset(name for patch in patches for name in imported_by(patch))
    landing = _Landing(Files(tree, [*active, *possible], with_fingerprints, imported), pristine)
    for patch in patches:
        for edit in patch.edits:
            if edit in active:
                landing.land(edit)
            else:
                landing.skip(edit)
        for edit in import_edits(patch, landing.landed(patch)):
            landing.land_import(edit)
    _fail_strays(landing.files, landing.results)
    _fail_conflicts(landing.splices, landing.results)
    _fail_incomplete(landing.results)
    return _plan(patches, tree, landing.results, landing.splices, landing.mixed)


def _forms_of(patch: Patch, active: Sequence[Edit]) -> list[Edit]:
    return [form for edit in patch.edits if edit in active for form in edit.forms()]


@dataclass
class _Landing:
    """What has landed so far, in commit order."""

    files: Files
    pristine: bool
    """Whether code that equals ours is upstream's own."""
    results: dict[str, EditResult] = field(default_factory=dict)
    splices: dict[str, list[Splice]] = field(default_factory=dict)
    imported: set[tuple[str, str]] = field(default_factory=set)
    mixed: bool = False

    def land(self, edit: Edit) -> None:
        attempts, variant = _try_forms(self.files, edit)
        attempt = attempts[variant]
        # A line of ours right below the file's imports may use the name.
        order = -1 if edit.verb == IMPORT else len(self.results)
        self.mixed |= 0 < attempt.present < len(attempt.hits)
        self.results[edit.key] = _result(edit, attempts, variant)
        if edit.only_if and attempt.problem and not any(one.hits for one in attempts):
            why = f"{edit.only_if} is in this upstream, the anchor is not (yet)"
            self.results[edit.key] = EditResult(edit, edit, 0, "skipped", (), why, None)
        elif self._taken_over(edit, self.results[edit.key]):
            why = "upstream does this itself; nothing was added, and the edit may be retired"
            self.results[edit.key] = EditResult(edit, attempt.form, variant, "skipped", attempt.hits, why, None)
        if self.results[edit.key].status == "applied":
            made = [Splice(piece, edit.key, edit.patch, order) for piece in attempt.pieces]
            self.splices.setdefault(attempt.form.file, []).extend(made)

    def land_import(self, edit: Edit) -> None:
        """Unless an earlier patch has brought the same line into the file."""
        if (edit.file, edit.code) not in self.imported:
            self.imported.add((edit.file, edit.code))
            self.land(edit)

    def _taken_over(self, edit: Edit, result: EditResult) -> bool:
        """Upstream has the pattern the edit may be retired for, or the very code, which then names nothing of ours."""
        ours = self.files.get(result.form.file) if result.status in ("applied", "already") else None
        if ours is None or edit.verb == IMPORT:
            return False
        if result.status == "already":
            return (
                self.pristine and "gh200" not in result.form.code and not used_names(result.form) & self.files.imported
            )
        pattern = edit.life.retire_when.partition(HAS)[2] if edit.life else ""
        return bool(pattern) and has_pattern(ours.source, pattern)

    def skip(self, edit: Edit) -> None:
        why = f"{edit.only_if} is not in this upstream"
        self.results[edit.key] = EditResult(edit, edit, 0, "skipped", (), why, None)

    def landed(self, patch: Patch) -> list[Edit]:
        results = [self.results[edit.key] for edit in patch.edits]
        return [result.form for result in results if result.status in ("applied", "already")]


def has_pattern(source: Source, pattern: str) -> bool:
    """Whether any scope of the file matches."""
    every = (place for found in source.scopes.values() for place in found)
    return any(True for place in every for _ in find(compile_pattern(pattern), place.node))


def _try_forms(files: Files, edit: Edit) -> tuple[list[_Attempt], int]:
    """The attempts made, and the index of the one to use: the first that fits, else the main form.

    A form fits when its anchor does and, where another form may do better, what its code and contracts name is there.
    """
    attempts: list[_Attempt] = []
    for index, form in enumerate(edit.forms()):
        attempts.append(_attempt(files, form))
        if not attempts[-1].problem and (not edit.variants or _is_at_home(files, form)):
            return attempts, index
    landed = (index for index, attempt in enumerate(attempts) if not attempt.problem)
    return attempts, next(landed, 0)


def _is_at_home(files: Files, form: Edit) -> bool:
    """Whether its scope has the names the code uses and the statements the contracts speak of."""
    ours = files.get(form.file)
    if ours is None or unbound(ours.source, form.scope, needed_names(form) - files.imported):
        return False
    scopes = ours.source.scopes[form.scope]
    marks = (compile_pattern(text) for text in (*form.after_every, *form.before_any))
    return all(any(True for place in scopes for _ in find(mark, place.node)) for mark in marks)


def _attempt(files: Files, form: Edit) -> _Attempt:
    try:
        ours = files.get(form.file)
        if ours is None:
            return _Attempt(form, problem=missing_file(form.file, files.tree))
        source = ours.source
        if form.scope not in source.scopes:
            return _Attempt(form, problem=missing_scope(form.scope, source))
        found = _hits(source, form)
        if len(found) != form.count:
            hits = tuple(_hit(source, form, item, []) for item in found)
            return _Attempt(form, hits, problem=wrong_count(form, source, found))
        return _land(files, ours, form, found)
    except Unreadable as error:
        return _Attempt(form, problem=f"{form.file}: {error}")
    except RecursionError:
        return _Attempt(form, problem=f"{form.file}: is nested too deeply")


def _hits(source: Source, form: Edit) -> list[Found]:
    scopes = source.scopes[form.scope]
    if form.verb == IMPORT:
        return [Found(scopes[0], source.tree)]
    if not form.anchor:
        return [Found(place, place.node) for place in scopes if isinstance(place.node, ast.ClassDef)]
    found = [item for place in scopes for item in find(compile_pattern(form.anchor), place.node)]
    if form.verb == "wrap":
        return [item for item in found if isinstance(getattr(item.node, "ctx", ast.Load()), ast.Load)]
    if form.verb == "append":
        return [item for item in found if display_of(item.node)]
    return list({id(item.place.node): item for item in reversed(found)}.values())[::-1]


def _land(files: Files, ours: Ours, form: Edit, found: Sequence[Found]) -> _Attempt:
    hits: list[Hit] = []
    pieces: list[Piece] = []
    present = 0
    scope = form.scope or "(module level)"
    for item in found:
        here: list[Piece] = []
        if ours.claim(form, item):
            present += 1
        else:
            try:
                here = PLACERS[form.verb](ours.source, form, item)
            except (CannotPlace, Unreadable) as error:
                line = getattr(item.node, "lineno", 1)
                return _Attempt(form, tuple(hits), problem=f"{form.file}:{line}: scope {scope}: {error}")
        pieces += here
        hits.append(_hit(ours.source, form, item, here))
    problem = ""
    if 0 < present < len(found):
        problem = f"{form.file}: scope {scope}: {present} of {len(found)} places already hold our code"
    mark = fingerprint(ours.source, form, found) if files.with_fingerprints and form.verb != IMPORT else None
    return _Attempt(form, tuple(hits), tuple(pieces), present, problem, mark)


def _hit(source: Source, form: Edit, found: Found, pieces: Sequence[Piece]) -> Hit:
    insert_line = source.line_at(pieces[-1].offset) if pieces else getattr(found.node, "lineno", 1)
    line = getattr(found.node, "lineno", insert_line)
    return Hit(form.file, line, form.scope, insert_line, tuple(form.code.split("\n")))


def _result(edit: Edit, attempts: Sequence[_Attempt], variant: int) -> EditResult:
    used = attempts[variant]
    if used.problem:
        others = [f"variant {index}: {attempt.problem}" for index, attempt in enumerate(attempts) if index]
        return EditResult(edit, used.form, 0, "failed", used.hits, "\n".join([used.problem, *others]), None)
    status = "already" if used.present else "applied"
    return EditResult(edit, used.form, variant, status, used.hits, "", used.fingerprint)


def _fail(results: dict[str, EditResult], key: str, detail: str) -> None:
    known = results[key]
    detail = f"{known.detail}\n{detail}" if known.detail else detail
    results[key] = replace(known, status="failed", detail=detail)


def _fail_strays(files: Files, results: dict[str, EditResult]) -> None:
    """Our code that stands beside no anchor would be inserted a second time."""
    for path, ours in files.known():
        for mark in ours.strays():
            for key, result in list(results.items()):
                same_code = any(form.file == path and code_of(form) == mark.code for form in result.edit.forms())
                if same_code and result.status != "skipped":
                    _fail(results, key, f"{path}:{mark.line}: our code stands here, but not beside its anchor")


def _fail_conflicts(splices: dict[str, list[Splice]], results: dict[str, EditResult]) -> None:
    for path, made in splices.items():
        for one, other in set(conflicts(made)):
            for key in {one, other}:
                _fail(results, key, f"{path}: edits {one} and {other} overlap")


def _fail_incomplete(results: dict[str, EditResult]) -> None:
    """Edits that only work together: all of them, or none."""
    for key, result in list(results.items()):
        for other in result.edit.requires:
            if result.status == "applied" and results[other].status not in ("applied", "already"):
                _fail(results, key, f"requires {other}, which is {results[other].status}")


def _plan(
    patches: Sequence[Patch],
    tree: Tree,
    results: dict[str, EditResult],
    splices: dict[str, list[Splice]],
    mixed: bool,
) -> Plan:
    """The bytes after each patch, for all edits that found their place."""
    good = {
        path: tuple(splice for splice in made if results[splice.edit].status == "applied")
        for path, made in splices.items()
    }
    pristine = {path: tree.read(path) or b"" for path in good}
    contents: dict[int, dict[str, bytes]] = {}
    final: dict[str, bytes] = {}
    done: set[int] = set()
    for patch in patches:
        done.add(patch.number)
        touched = [path for path, made in good.items() if any(splice.patch == patch.number for splice in made)]
        contents[patch.number] = {
            path: compose(pristine[path], (splice for splice in good[path] if splice.patch in done))[0]
            for path in touched
        }
        final |= contents[patch.number]
    states = {result.status for result in results.values()}
    return Plan(tuple(results.values()), contents, final, good, mixed or {"applied", "already"} <= states)
