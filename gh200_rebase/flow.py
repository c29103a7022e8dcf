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
from .errors import EXIT_CLEAN, Rejected, ValidationFailed
from .lock.assess import Assessment
from .pages import checklist, report
from .patches.patchfile import Patch
from .project import Project
from .system import gitrepo
from .system.durable import write_atomic
from .upstream.fetch import Upstream
from .workspace import builds
from .workspace.builds import Built
from .workspace.history import FORK_BRANCH, Step
from .workspace.run_files import CHECKLIST, LOG, append_log, install, store

Result = dict[str, Any]


def apply(
    project: Project, upstream: Upstream, assessment: Assessment, into: Path, *, skip_tests: bool, result: Result
) -> int:
    """Test the pristine tree, build the fork, validate it, record the results."""
    outcomes: list[Outcome] = []
    if not skip_tests:
        outcomes.append(smoke(project, upstream.root, "the pristine tree"))
        _stop_if_failed(outcomes, "the pristine upstream already fails; the fork was not touched")
    # Complete from the start, so that a kill during the validation leaves a page that is true.
    page = partial(_checklist, project, assessment, (), pending=not skip_tests)
    linked = into == project.fork
    built = builds.build(into, upstream, _steps(project, upstream, assessment), page, linked=linked)
    result.update(into=str(into), already=built.already, backup=built.backup, commits=list(built.history.commits))
    if built.problems:
        return say_not_checked_out(into, built)
    if linked:
        _point_to_pristine(project)
    write_atomic(store(into) / "built.json", json.dumps(_identity(project, upstream, built.history.tip)).encode())
    if built.already:
        say_already_built(upstream, into)
    else:
        count = len(built.history.commits)
        print(f"\nbuilt: {into} is the fork of {upstream.label}, {count} commits on the pristine upstream")
        print(f"backup branch {built.backup}; the way back is ROLLBACK.sh there, or --rollback here")
    say_keys(into)
    if not skip_tests:
        outcomes += validate(project, upstream.root, into)
    if outcomes:
        _record(project, assessment, built, into, outcomes)
    result["validation"] = [vars(outcome) for outcome in outcomes]
    _stop_if_failed(outcomes, "the fork is built, its validation failed")
    if outcomes:
        print(f"\nvalidated: all {len(outcomes)} passed; results, and what is left for you: {into / CHECKLIST}")
    return EXIT_CLEAN


def make(project: Project, upstream: Upstream, assessment: Assessment, into: Path) -> str:
    """The fork in a directory of its own, without tests or a checklist; returns its last commit."""
    return builds.build(into, upstream, _steps(project, upstream, assessment), lambda built: "").history.tip


def say_not_checked_out(into: Path, built: Built) -> int:
    """The branch was added to a tree that has changes: those stay as they are."""
    print(f"\nbuilt: branch {FORK_BRANCH} of {into}, {len(built.history.commits)} commits on the pristine upstream")
    print("not checked out, because the tree is not clean:\n  " + "\n  ".join(built.problems))
    print(f"commit or stash, then `git checkout {FORK_BRANCH}`; the log of this run is in {store(into) / built.backup}")
    return EXIT_CLEAN


def already_built(project: Project, upstream: Upstream, into: Path) -> bool:
    """Whether the last run made this very tree from these very inputs, and nobody has touched it since."""
    if not (into / ".git").exists():
        return False
    record = store(into) / "built.json"
    known = json.loads(record.read_bytes()) if record.is_file() else {}
    head = gitrepo.tip(into, f"refs/heads/{FORK_BRANCH}")
    return (
        known == _identity(project, upstream, head)
        and gitrepo.checked_out(into) == f"refs/heads/{FORK_BRANCH}"
        and not gitrepo.changes(into)
    )


def _identity(project: Project, upstream: Upstream, tip: str | None) -> dict[str, str | None]:
    return {"project": project.full_digest, "upstream": upstream.digest, "tip": tip}


def say_already_built(upstream: Upstream, into: Path) -> None:
    """The message of a run that had nothing to do."""
    print(f"already there: {into} is the fork of {upstream.label}; nothing was changed")


def recover(into: Path, options: Namespace, result: Result) -> int:
    """Roll back; there is nothing to resume, because a run is one step."""
    if options.resume:
        builds.require_fork(into)
        raise Rejected(
            "Nothing to resume",
            where=str(into),
            why="a run that was interrupted has changed nothing",
            fix="run the same command again",
        )
    result["done"] = builds.rollback(into, options.yes)
    print(result["done"])
    return EXIT_CLEAN


def state(project: Project, into: Path) -> Result:
    """What `status` prints."""
    lock = project.lock
    found: Result = {
        "patches": ", ".join(patch.name for patch in project.patches),
        "verified": f"{len(lock.releases)} releases, newest {lock.newest() or 'none'}",
        "tree": str(into),
    }
    if not (into / ".git").exists():
        return found | {"fork": "not built; run ./execute_gh200_rebase.sh"}
    log = into / LOG
    kept = log.read_text(encoding="utf-8").splitlines() if log.is_file() else []
    older = sorted(path.name for path in into.with_name("forks").glob("[!.]*")) if into.is_symlink() else []
    return found | {
        "branch": (gitrepo.checked_out(into) or "detached").removeprefix("refs/heads/"),
        "commit": gitrepo.text(into, "log", "-1", "--format=%h %s"),
        "upstream": next((line.partition(": ")[2] for line in kept if line.startswith("Upstream: ")), "unknown"),
        "backup": next((line.partition(": ")[2] for line in kept if line.startswith("Backup branch: ")), "none"),
        "changes": len(gitrepo.changes(into)) or "none",
        "builds": ", ".join(older) or "none",
    }


def left_behind(into: Path) -> str:
    """The state after a run that was stopped."""
    if not (into / ".git").exists():
        return f"nothing was written to {into}"
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


def _point_to_pristine(project: Project) -> None:
    """build/pristine, the tree the fork was made from, through build/fork: both are switched by one rename."""
    link = project.build / "pristine"
    wanted = "fork/.git/gh200/pristine"
    if not link.is_symlink() or os.readlink(link) != wanted:
        fresh = link.with_name(f".pristine.{os.getpid()}")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(wanted)
        fresh.replace(link)


def _record(project: Project, assessment: Assessment, built: Built, into: Path, outcomes: list[Outcome]) -> None:
    lines = ["", report.summary(assessment), *(f"{o.name}: {o.verdict} ({o.seconds:.0f} s)" for o in outcomes), ""]
    append_log(into, "\n".join(lines))
    install(into, {CHECKLIST: _checklist(project, assessment, tuple(outcomes), built).encode()})


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
