"""A repair for each edit that lost its place: candidates are tried with all proofs, the best is written as a variant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..engine.resolve import Plan, resolve
from ..lock.assess import Assessment
from ..patches.imports import imported_by
from ..patches.patchmodel import CONTRACTS, Edit, Patch
from ..project import Project
from ..proofs.prove import check_placements, prove
from ..syntax.tree import Tree
from .candidates import Candidate, Site, candidates, last_site

_TRIED = 4
_UNKNOWN = "is unknown: there is none in"


@dataclass(frozen=True)
class Proposal:
    """One repair of one edit: `form` is complete, `problems` is what does not hold there, `dropped` which contracts."""

    edit: Edit
    form: Edit
    old: Site | None
    new: Site
    score: float
    problems: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    @property
    def proved(self) -> bool:
        """Whether every proof and contract holds."""
        return not self.problems


def troubled(assessment: Assessment) -> list[Edit]:
    """Edits without a place, or with one where a proof or a contract does not hold, in commit order."""
    bad = {proof.edit_key for proof in assessment.proofs if not proof.ok}
    bad |= {violation.edit_key for violation in assessment.violations}
    bad |= {result.edit.key for result in assessment.plan.failed}
    found = [result.edit for result in assessment.plan.results if result.edit.key in bad]
    # Methods of ours are found through the base class, so that comes first.
    return sorted((edit for edit in found if " into " not in edit.key), key=lambda edit: edit.verb != "base")


def propose(project: Project, assessment: Assessment, tree: Tree, verified: Tree | None) -> dict[str, list[Proposal]]:
    """Per edit its proposals, best first; the first of each earlier edit counts as applied for the later ones."""
    patches = project.patches
    found: dict[str, list[Proposal]] = {}
    for edit in troubled(assessment):
        old = _last(edit, verified) if verified else None
        ours = frozenset(name for patch in patches for name in imported_by(patch))
        ranked = candidates(edit, tree, old, project.lock.reviewed(edit.key), ours)
        tried = [_tried(project, patches, tree, edit, one, old) for one in ranked[:_TRIED]]
        found[edit.key] = sorted(tried, key=lambda one: (not one.proved, -one.score))
        if found[edit.key]:
            patches = with_variant(patches, found[edit.key][0])
    return found


def _last(edit: Edit, verified: Tree) -> Site | None:
    return next((site for form in edit.forms() if (site := last_site(form, verified))), None)


def with_variant(patches: Sequence[Patch], proposal: Proposal) -> tuple[Patch, ...]:
    """The patches with the proposal as a variant."""

    def changed(edit: Edit) -> Edit:
        same = edit.key == proposal.edit.key
        return replace(edit, variants=(*edit.variants, proposal.form)) if same else edit

    return tuple(replace(patch, edits=tuple(map(changed, patch.edits))) for patch in patches)


def _tried(
    project: Project, patches: Sequence[Patch], tree: Tree, edit: Edit, one: Candidate, old: Site | None
) -> Proposal:
    """With all proofs; a contract about something that this scope does not have is left out, and said."""
    proposal = Proposal(edit, one.form, old, one.site, one.score)
    problems = list(_problems(project, patches, tree, proposal))
    unknown = [text for text in problems if _UNKNOWN in text]
    if unknown:
        form = one.form
        for key in ("after_every", "before_any"):
            kept = tuple(text for text in getattr(form, key) if not any(f"`{text}`" in problem for problem in unknown))
            form = replace(form, **{key: kept})  # type: ignore[arg-type]
        proposal = replace(proposal, form=form, dropped=tuple(unknown))
        problems = list(_problems(project, patches, tree, proposal))
    return replace(proposal, problems=tuple(problems))


def _problems(project: Project, patches: Sequence[Patch], tree: Tree, proposal: Proposal) -> Iterator[str]:
    key, file = proposal.edit.key, proposal.form.file
    here = _beside(with_variant(patches, proposal), key, file)
    plan = resolve(here, tree)
    result = next(item for item in plan.results if item.edit.key == key)
    if result.status != "applied":
        yield result.detail
        return
    if result.form != proposal.form:
        yield "an earlier form of the edit lands elsewhere, so that this one is never tried"
    # Others that still have no place are not this one's fault.
    here, plan = _landed(here, plan, tree)
    yield from (
        proof.detail for proof in prove(here, tree, plan, project.overlay) if proof.edit_key == key and not proof.ok
    )
    yield from (f"line {v.line}: {v.what}" for v in check_placements(tree, plan) if v.edit_key == key)


def _beside(patches: Sequence[Patch], key: str, file: str) -> tuple[Patch, ...]:
    """The edits of the same file: only they can conflict, or bring what the code calls."""
    cut = (
        replace(
            patch,
            edits=tuple(
                edit for edit in patch.edits if edit.key == key or any(form.file == file for form in edit.forms())
            ),
        )
        for patch in patches
    )
    return tuple(patch for patch in cut if patch.edits)


def _landed(patches: Sequence[Patch], plan: Plan, tree: Tree) -> tuple[tuple[Patch, ...], Plan]:
    lost = {result.edit.key for result in plan.failed}
    if not lost:
        return tuple(patches), plan
    kept = (replace(patch, edits=tuple(e for e in patch.edits if e.key not in lost)) for patch in patches)
    left = tuple(patch for patch in kept if patch.edits)
    return left, resolve(left, tree)


def changed_keys(proposal: Proposal) -> dict[str, object]:
    """What the variant must say: the fields in which it differs from the edit."""
    names = ("file", "scope", "verb", "anchor", "code", "count", *CONTRACTS)
    main, form = proposal.edit, proposal.form
    return {name: getattr(form, name) for name in names if getattr(form, name) != getattr(main, name)}
