"""Drift, one place at a time: old beside new, accepted or left; what was accepted is in the lock before the next is shown."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from ..engine.plan import EditResult
from ..errors import Rejected
from ..lock.assess import Assessment
from ..lock.drift import Drift, observe
from ..patches import lockfile
from ..patches.patchmodel import Edit
from ..project import Project
from ..proofs.bodies import Body, text_of
from ..repair.candidates import Site, last_site
from ..syntax.tree import DirectoryTree, Tree
from ..upstream.fetch import Upstream
from .repair import beside

_ASK = "accept? [y]es, [n]o, [q]uit: "


@dataclass(frozen=True)
class Done:
    """Keys that were accepted, and keys that were not."""

    accepted: tuple[str, ...]
    left: tuple[str, ...]


def review_drift(
    project: Project, upstream: Upstream, assessment: Assessment, verified: Tree | None, accept: Sequence[str] | None
) -> Done:
    """Ask about each place (or take `accept` for an answer) and record what was accepted."""
    todo = {drift.edit_key: drift for drift in assessment.to_review}
    unknown = set(accept or ()) - todo.keys() - {"all"}
    if unknown:
        raise Rejected(
            f"Nothing to review for {', '.join(sorted(unknown))}",
            where=upstream.label,
            fix=f"to review are {', '.join(todo) or 'none'}",
        )
    results = {result.edit.key: result for result in assessment.plan.results}
    bodies = {body.key: body for body in assessment.bodies}
    accepted: list[str] = []
    for number, (key, drift) in enumerate(todo.items(), start=1):
        print(f"\n[{number} of {len(todo)}] {key} ({drift.file}:{drift.line}): {drift.what}")
        now = DirectoryTree(upstream.root)
        print(_edit(results[key], verified, now) if key in results else _function(bodies[key], verified, now))
        answer = _answer(drift, accept)
        if answer == "q":
            break
        if answer == "y":
            _record(project, upstream, assessment, key)
            accepted.append(key)
    return Done(tuple(accepted), tuple(key for key in todo if key not in accepted))


def _edit(result: EditResult, verified: Tree | None, now: Tree) -> str:
    sites = beside(_verified(result.edit, verified), last_site(result.form, now))
    ours = f"{result.form.verb}: {result.form.code}".replace("\n", "\n      ")
    return f"  {result.edit.why}\n{sites}\nours: {ours}"


def _function(body: Body, verified: Tree | None, now: Tree) -> str:
    if verified is None:
        return "last verified: not known"
    lines = (text_of(body, verified), text_of(body, now))
    return "\n".join(difflib.unified_diff(*lines, "last verified", "now", lineterm=""))


def _verified(edit: Edit, tree: Tree | None) -> Site | None:
    return next((site for form in edit.forms() if tree and (site := last_site(form, tree))), None)


def _answer(drift: Drift, accept: Sequence[str] | None) -> str:
    if accept is not None:
        return "y" if drift.edit_key in accept or "all" in accept else "n"
    if not sys.stdin.isatty():
        return "n"
    while True:
        try:
            said = input(_ASK).strip().lower()[:1]
        except EOFError:
            return "q"
        if said in ("y", "n", "q"):
            return said


def _record(project: Project, upstream: Upstream, assessment: Assessment, key: str) -> None:
    """In the lock as it is now; a later `lock` turns what a release has into an entry of that release."""
    lock = lockfile.load(project.lock_path)
    entry = observe(upstream.label, assessment.plan.results, assessment.bodies)[key]
    lockfile.save(lockfile.accept(lock, {key: entry}), project.lock_path)
