"""Commands that look at one upstream and write nothing but what was asked for."""

from __future__ import annotations

from argparse import Namespace

from ..errors import EXIT_ANCHOR, EXIT_CLEAN, EXIT_DRIFT, EXIT_TESTS, Rejected
from ..lock.assess import Assessment, assess
from ..lock.lifecycle import FAILED, judge
from ..pages import repair as repair_page
from ..pages import report
from ..pages.review import review_drift
from ..project import Project
from ..repair.propose import propose, troubled
from ..repair.variant import write_variant
from ..syntax.tree import DirectoryTree
from ..upstream.fetch import Upstream
from .common import Result, assessed, fetched, verified_tree


def check(project: Project, options: Namespace, result: Result) -> int:
    """Assess one upstream and list every problem."""
    upstream, assessment = assessed(project, options, result)
    print(report.edits_table(assessment), report.summary(assessment), sep="\n\n")
    for failure in assessment.failures:
        print(f"\nFAILED {failure}")
    for violation in assessment.violations:
        print(f"\nMISPLACED {violation.edit_key} ({violation.file}:{violation.line}): {violation.what}")
    for drift in assessment.to_review:
        print(f"\nTO REVIEW {drift.edit_key} ({drift.file}:{drift.line}): {drift.what}")
    if troubled(assessment):
        if options.propose:
            return _propose(project, options, result, upstream, assessment, write=True)
        print("\n--propose looks for the places that were lost, shows old beside new and writes the repair")
    if assessment.exit_code == EXIT_DRIFT and options.accept_drift:
        return EXIT_CLEAN
    return assessment.exit_code


def explain(project: Project, options: Namespace, result: Result) -> int:
    """Show what one patch does and where it lands."""
    chosen = [
        patch for patch in project.patches if options.patch in (str(patch.number), patch.name, f"{patch.number:02}")
    ]
    if not chosen:
        known = ", ".join(sorted(patch.name for patch in project.patches))
        raise Rejected(
            f"There is no patch {options.patch!r}", where=str(project.root / "patches"), fix=f"use one of {known}"
        )
    upstream, assessment = assessed(project, options, result)
    print(report.explain(chosen[0], assessment, DirectoryTree(upstream.root)))
    if any(edit.patch == chosen[0].number for edit in troubled(assessment)):
        _propose(project, options, result, upstream, assessment, write=options.propose, only=chosen[0].number)
    return EXIT_ANCHOR if assessment.failures else EXIT_CLEAN


def _propose(
    project: Project,
    options: Namespace,
    result: Result,
    upstream: Upstream,
    assessment: Assessment,
    *,
    write: bool,
    only: int | None = None,
) -> int:
    """Show a repair for every edit that lost its place; with `write`, put the best into the patch files."""
    tree = DirectoryTree(upstream.root)
    found = propose(project, assessment, tree, verified_tree(project, options.verified))
    found = {key: ranked for key, ranked in found.items() if only in (None, int(key[:2]))}
    print(repair_page.proposals(found))
    paths = {patch.number: patch.path for patch in project.patches}
    written = []
    for ranked in found.values() if write else ():
        if ranked and ranked[0].proved:
            write_variant(paths[ranked[0].edit.patch], ranked[0])
            written.append(f"{paths[ranked[0].edit.patch]}: [[edit.variant]] for {ranked[0].edit.key}")
    print("", repair_page.summary(found, written), sep="\n")
    result["proposals"] = {key: [repair_page.as_json(one) for one in ranked] for key, ranked in found.items()}
    if not written:
        return assessment.exit_code
    after = assess(Project(project.root), tree, upstream.label, upstream.version)
    print(
        f"with them: {len(after.failures)} failures, {len(after.violations)} misplaced, "
        f"{len(after.to_review)} to review; read the diff of patches/, then `review`"
    )
    return after.exit_code


def review(project: Project, options: Namespace, result: Result) -> int:
    """Step through what moved; what is accepted is recorded in the lock at once, one by one."""
    upstream, assessment = assessed(project, options, result)
    if assessment.failures or assessment.violations:
        raise Rejected(
            f"{upstream.label} cannot be reviewed yet: edits have no place, or the wrong one",
            where="\n".join([*assessment.failures, *(f"{v.edit_key}: {v.what}" for v in assessment.violations)]),
            fix="repair them first: `check --propose` with the same --upstream",
        )
    done = review_drift(project, upstream, assessment, verified_tree(project, options.verified), options.accept)
    result.update(accepted=list(done.accepted), left=list(done.left))
    print(f"{len(done.accepted)} accepted, {len(done.left)} left to review")
    if done.accepted:
        print(f"written: {project.lock_path}")
    return EXIT_DRIFT if done.left else EXIT_CLEAN


def retire(project: Project, options: Namespace, result: Result) -> int:
    """Run the test of each patch, edit and workaround on the pristine tree, and list what can go."""
    upstream = fetched(project, options.upstream)
    verdicts = judge(project, DirectoryTree(upstream.root), upstream.root)
    print(report.retire_table(upstream.label, verdicts))
    result["upstream"] = upstream.label
    result["verdicts"] = [
        {"what": v.what, "class": v.life.kind, "forwarded": v.life.forwarded, "test": v.life.retire_when}
        | {"result": v.result, "detail": v.detail}
        for v in verdicts
    ]
    return EXIT_TESTS if any(v.result == FAILED for v in verdicts) else EXIT_CLEAN


def export(project: Project, options: Namespace, result: Result) -> int:
    """Write unified diffs of all patches."""
    if options.into is None:
        raise Rejected("export needs a directory", fix="name it: export --into DIR")
    into = options.into.resolve()
    if into.is_relative_to(project.root) and not into.is_relative_to(project.build):
        raise Rejected(
            "The diffs hold upstream's lines, and those are never stored in this repository",
            where=str(into),
            fix="choose a directory outside it, or below build/",
        )
    upstream, assessment = assessed(project, options, result)
    assessment.require(accept_drift=True)
    written = report.export(project.patches, assessment, DirectoryTree(upstream.root), into)
    print("\n".join(str(path) for path in written))
    return EXIT_CLEAN
