"""GH200_REBASE_CHECKLIST.md: what the tool did and measured, filled in; what only a person can confirm, open."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ..delivery.validate import Outcome
from ..lock.assess import Assessment
from ..patches.lockfile import Lock
from ..workspace.builds import Built

# (section, what a person confirms)
HUMAN = {
    "Review": (
        "The drift listed above was read in the code, not only in this list (`./execute_gh200_rebase.sh explain NN`)",
        "Upstream's release notes were read for changes to accumulation, caches, data backends and config loading",
        "New upstream features that overlap with ours were noted (memory backends, prefetch, schedules)",
    ),
    "On a GH200": (
        "`source scripts/setup_gh200_env.sh` said what it set, and whether this PyTorch takes the allocator keys",
        "`python gh200_diagnostic.py` has no fail there, and its report is kept with this page",
        "A short run with the features on shows the ramp and the cache lines in the log",
        "`nvidia-smi dmon -s u` during that run shows the GPU busy",
        "`scripts/capture_baseline.sh --compare baseline/`, features off, is not worse than the release before (5 %)",
    ),
    "Release": (
        "The fork was tagged, or the wheel (`./execute_gh200_rebase.sh wheel`) was handed over",
        "Operators were informed of what changed",
    ),
}


@dataclass(frozen=True)
class Facts:
    """What the page of one run is made from."""

    assessment: Assessment
    built: Built
    outcomes: tuple[Outcome, ...]
    lock: Lock
    pending: bool = False
    """Whether tests are still to be run: a kill before their end leaves this page."""


def render(facts: Facts | None) -> str:
    """The page of one run; without facts, the empty form."""
    lines = ["# GH200 rebase checklist", ""]
    lines += _filled(facts) if facts else _empty()
    for section, questions in HUMAN.items():
        lines += ["", f"## {section}", "", *(f"- [ ] {question}" for question in questions)]
    return "\n".join([*lines, "", "Confirmed by: ____________________  Date: ____________", ""])


def _filled(facts: Facts) -> list[str]:
    assessment, built = facts.assessment, facts.built
    plan = assessment.plan
    proofs, names = assessment.proofs, assessment.interfaces
    checks = [
        (not plan.failed, f"{len(plan.applied)} edits applied, {len(plan.skipped)} skipped, {len(plan.failed)} failed"),
        (all(proof.ok for proof in proofs), f"{sum(proof.ok for proof in proofs)} of {len(proofs)} proofs hold"),
        (
            all(item.ok for item in names),
            f"{sum(item.ok for item in names)} of {len(names)} upstream interfaces as expected",
        ),
        (not assessment.to_review, f"{len(assessment.to_review)} places drifted and need review"),
        (True, f"{len(built.history.commits)} commits on {built.history.pristine[:12]}, tip {built.history.tip[:12]}"),
        (bool(built.backup) or built.already, f"backup branch {built.backup or '(tree was already there)'}"),
        *((outcome.ok, _outcome_lines(outcome)) for outcome in facts.outcomes),
    ]
    if not facts.outcomes:
        state = "has not come to its end: run the same command again" if facts.pending else "was not run (--skip-tests)"
        checks.append((False, f"validation {state}"))
    return [
        f"- Upstream: {assessment.label} (version {assessment.version})",
        f"- Date: {datetime.now().astimezone():%Y-%m-%d %H:%M %z}",
        f"- Newest release verified by the lock: {facts.lock.newest() or 'none'}",
        "",
        "## Done by the tool",
        "",
        *(f"- [{'x' if ok else ' '}] {text}" for ok, text in checks),
        *(
            f"  - {drift.level}: {drift.edit_key} ({drift.file}:{drift.line}): {drift.what}"
            for drift in assessment.drift
        ),
    ]


def _outcome_lines(outcome: Outcome) -> str:
    """The command or check, how it went, and below it what each scenario showed."""
    head = f"`{outcome.name}`: {outcome.verdict}, {outcome.seconds:.0f} s"
    return "\n".join([head, *(f"  - {' '.join(line.split())}" for line in outcome.shown)])


def _empty() -> list[str]:
    return [
        "The form as it is before a rebase. `./execute_gh200_rebase.sh` writes a copy with its own part filled in into",
        "the fork's tree.",
        "",
        "## Done by the tool",
        "",
        *(
            f"- [ ] {text}"
            for text in (
                "edits applied, skipped, failed",
                "proofs hold",
                "upstream interfaces as expected",
                "places drifted and need review",
                "commits and backup branch",
                "smoke test of the pristine tree",
                "validation scripts",
            )
        ),
    ]
