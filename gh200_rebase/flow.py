"""The whole act: pristine tree smoke-tested, fork built commit by commit, validated, logged; and the way back."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

from .delivery.keys import say_keys
from .delivery.validate import Outcome, smoke, validate
from .errors import EXIT_CLEAN, ValidationFailed
from .lock.assess import Assessment
from .pages import checklist, report
from .patches.patchfile import Patch
from .project import Project
from .system import gitrepo
from .system.durable import write_atomic
from .upstream.fetch import Upstream
from .workspace import journal, rollback
from .workspace import switch as workspace
from .workspace.switch import Built, Step

Result = dict[str, Any]


def apply(
    project: Project, upstream: Upstream, assessment: Assessment, into: Path, *, skip_tests: bool, result: Result
) -> int:
    outcomes: list[Outcome] = []
    if not skip_tests:
        outcomes.append(smoke(project, upstream.root, "the pristine tree"))
        _stop_if_failed(outcomes, "the pristine upstream already fails; the fork was not touched")
    # Complete from the start, so that a kill during the validation leaves a page that is true.
    page = partial(_checklist, project, assessment, (), pending=not skip_tests)
    built = workspace.build(into, upstream, _steps(project, upstream, assessment), page)
    result.update(into=str(into), already=built.already, backup=built.backup, commits=list(built.commits))
    _point_to_pristine(project, upstream)
    write_atomic(journal.store(into) / "built.json", json.dumps(_identity(project, upstream, built.tip)).encode())
    if built.already:
        say_already_built(upstream, into)
    else:
        print(f"\nbuilt: {into} is the fork of {upstream.label}, {len(built.commits)} commits on the pristine upstream")
        print(f"backup branch {built.backup}; the way back is ROLLBACK.sh there, or --rollback here")
    say_keys(into)
    if not skip_tests:
        outcomes += validate(project, upstream.root, into)
    if outcomes or not built.already:
        _record(project, assessment, built, into, outcomes)
    result["validation"] = [vars(outcome) for outcome in outcomes]
    _stop_if_failed(outcomes, "the fork is built, its validation failed")
    if outcomes:
        print(f"\nvalidated: all {len(outcomes)} passed; results, and what is left for you: {into / journal.CHECKLIST}")
    return EXIT_CLEAN


def make(project: Project, upstream: Upstream, assessment: Assessment, into: Path) -> Built:
    """The fork in a directory of its own, and nothing else: no tests, no links, no checklist."""
    return workspace.build(into, upstream, _steps(project, upstream, assessment))


def already_built(project: Project, upstream: Upstream, into: Path) -> bool:
    """Whether the last run made this very tree from these very inputs, and nobody has touched it since."""
    if not (into / ".git").exists() or journal.read(into):
        return False
    note = journal.store(into) / "built.json"
    known = json.loads(note.read_bytes()) if note.is_file() else {}
    head = gitrepo.tip(into, f"refs/heads/{journal.FORK_BRANCH}")
    return (
        known == _identity(project, upstream, head)
        and gitrepo.checked_out(into) == f"refs/heads/{journal.FORK_BRANCH}"
        and not gitrepo.changes(into)
    )


def _identity(project: Project, upstream: Upstream, tip: str | None) -> dict[str, str | None]:
    return {"project": project.full_digest, "upstream": upstream.digest, "tip": tip}


def say_already_built(upstream: Upstream, into: Path) -> None:
    print(f"already there: {into} is the fork of {upstream.label}; nothing was changed")


def recover(into: Path, options: Namespace, result: Result) -> int:
    said = rollback.rollback(into, options.yes) if options.rollback else rollback.resume(into)
    result["done"] = said
    print(said)
    return EXIT_CLEAN


def state(project: Project, into: Path) -> Result:
    lock = project.lock
    found: Result = {
        "patches": ", ".join(patch.name for patch in project.patches),
        "verified": f"{len(lock.releases)} releases, newest {lock.newest() or 'none'}",
        "tree": str(into),
    }
    if not (into / ".git").exists():
        return found | {"fork": "not built; run ./execute_gh200_rebase.sh"}
    unfinished = journal.read(into)
    log = into / journal.LOG
    kept = log.read_text(encoding="utf-8").splitlines() if log.is_file() else []
    return found | {
        "branch": (gitrepo.checked_out(into) or "detached").removeprefix("refs/heads/"),
        "commit": gitrepo.text(into, "log", "-1", "--format=%h %s"),
        "upstream": next((line.partition(": ")[2] for line in kept if line.startswith("Upstream: ")), "unknown"),
        "backup": next((line.partition(": ")[2] for line in kept if line.startswith("Backup branch: ")), "none"),
        "changes": len(gitrepo.changes(into)) or "none",
        "unfinished": f"{unfinished['action']}: finish with --resume or --rollback" if unfinished else "nothing",
    }


def left_behind(into: Path) -> str:
    """What a run that was stopped has left, and how to go on."""
    if not (into / ".git").exists():
        return f"nothing was written to {into}"
    found = journal.read(into)
    if found:
        return f"{into} was left half way through {found['action']}: {rollback.UNFINISHED_FIX}"
    branch = (gitrepo.checked_out(into) or "a detached commit").removeprefix("refs/heads/")
    return f"{into} is whole, on {branch} at {gitrepo.text(into, 'rev-parse', '--short', 'HEAD')}"


def _steps(project: Project, upstream: Upstream, assessment: Assessment) -> list[Step]:
    return [
        Step(
            subject=patch.subject,
            body=patch.why,
            trailers={"Gh200-Patch": patch.name, "Gh200-Upstream": upstream.label.replace(":", " ", 1)},
            files=_files(project, upstream, assessment, patch),
        )
        for patch in project.patches
    ]


def _files(project: Project, upstream: Upstream, assessment: Assessment, patch: Patch) -> dict[str, tuple[bytes, bool]]:
    edited = {
        path: (data, os.access(upstream.root / path, os.X_OK))
        for path, data in assessment.plan.contents.get(patch.number, {}).items()
    }
    return {**project.payloads[patch.number], **edited}


def _point_to_pristine(project: Project, upstream: Upstream) -> None:
    """build/pristine is what comparisons put on PYTHONPATH: the very tree the fork was made from."""
    link = project.build / "pristine"
    fresh = link.with_name(f".pristine.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.parent.mkdir(parents=True, exist_ok=True)
    fresh.symlink_to(os.path.relpath(upstream.root, link.parent))
    fresh.replace(link)


def _record(project: Project, assessment: Assessment, built: Built, into: Path, outcomes: list[Outcome]) -> None:
    lines = ["", report.summary(assessment), *(f"{o.name}: {o.verdict} ({o.seconds:.0f} s)" for o in outcomes), ""]
    rollback.append_log(into, "\n".join(lines))
    journal.install(into, journal.CHECKLIST, _checklist(project, assessment, tuple(outcomes), built))


def _checklist(
    project: Project, assessment: Assessment, outcomes: tuple[Outcome, ...], built: Built, pending: bool = False
) -> str:
    return checklist.render(checklist.Facts(assessment, built, outcomes, project.lock, pending))


def _stop_if_failed(outcomes: list[Outcome], what: str) -> None:
    failed = [outcome for outcome in outcomes if not outcome.ok]
    if failed:
        raise ValidationFailed(
            f"Tests failed: {what}",
            where="\n".join(f"{outcome.name}: {outcome.verdict}\n{outcome.tail}" for outcome in failed),
            fix="read the output above; --skip-tests builds without them, --rollback takes the build back",
        )
