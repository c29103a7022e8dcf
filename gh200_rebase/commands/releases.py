"""Commands about many upstreams at once: every release, every commit, and what was recorded of them."""

from __future__ import annotations

from argparse import Namespace

from packaging.version import InvalidVersion, Version

from ..errors import EXIT_ANCHOR, EXIT_CLEAN, AnchorFailed, Refused
from ..lock import history as history_run
from ..lock import matrix as matrix_run
from ..pages import history as history_page
from ..pages import manifest as manifest_page
from ..patches import lockfile
from ..patches.patchmodel import Edit
from ..project import Project
from ..upstream import history, registry
from .common import Result

OLDEST = "4.0.6"


def matrix(project: Project, options: Namespace, result: Result) -> int:
    if options.git:
        return _every_commit(project, options, result)
    rows = _matrix_rows(project, options)
    print(matrix_run.render(rows, project.lock))
    result.update(matrix_run.as_json(rows, project.lock))
    return matrix_run.exit_code(rows, project.lock)


def _every_commit(project: Project, options: Namespace, result: Result) -> int:
    rows = _history_rows(project, options)
    moves = history_run.moves(rows)
    print(history_page.render(rows, moves, project.lock))
    result.update(history_page.as_json(rows, moves, project.lock))
    print(f"written: {history_page.write(rows, project.lock, project.build / 'matrix')}")
    return history_run.exit_code(rows, project.lock)


def _history_rows(project: Project, options: Namespace, only: str = "") -> list[history_run.Row]:
    repo = history.repository(options.git)
    last = "HEAD" if options.last == "latest" else options.last
    found = history.changes(repo, options.first, last, options.first_parent)
    return history_run.run(project, repo, found, options.jobs, only)


def blame(project: Project, options: Namespace, result: Result) -> int:
    edit = _one_edit(project, options.edit)
    if options.git:
        rows = _history_rows(project, options, edit.key)
        # The unit holds the other edits of the same file too.
        moves = [move for move in history_run.moves(rows) if move.edit == edit.key]
        print(history_page.blame(edit, rows, moves, show_all=options.all))
        result["moves"] = [history_page.move_as_json(move) for move in moves]
        return EXIT_ANCHOR if any(text.startswith(f"{edit.key}:") for text in rows[-1].failures) else EXIT_CLEAN
    print(history_page.blame_releases(edit, project.lock))
    return EXIT_CLEAN


def _one_edit(project: Project, name: str) -> Edit:
    edits = [edit for patch in project.patches for edit in patch.edits]
    found = [edit for edit in edits if name in (edit.key, edit.id)]
    if len(found) != 1:
        raise Refused(
            f"{name!r} names {len(found) or 'no'} edit{'s' * (len(found) > 1)}",
            fix=f"use one of {', '.join(edit.key for edit in found or edits)}",
        )
    return found[0]


def lock(project: Project, options: Namespace, result: Result) -> int:
    rows = _matrix_rows(project, options)
    failures = [f"{row.version}: {failure}" for row in rows for failure in (*row.failures, *row.violations)]
    if failures:
        raise AnchorFailed(
            f"The lock was not rewritten: {len(failures)} problem(s)",
            where="\n".join(failures),
            fix="adapt the patches until `matrix` is clean, then run `lock` again",
        )
    moved = [f"{row.version} {move}" for row in rows for move in row.unreviewed(project.lock)]
    new = lockfile.build({row.version: (row.digest, row.entries) for row in rows})
    lockfile.save(lockfile.still_accepted(project.lock, new), project.lock_path)
    pages = manifest_page.write(Project(project.root))
    print("\n".join(["accepted: " + move for move in moved] or ["nothing had moved since the last lock"]))
    print(f"{len(rows)} releases verified; written:", project.lock_path, *pages)
    result["accepted"] = moved
    return EXIT_CLEAN


def manifest(project: Project, options: Namespace, result: Result) -> int:
    if options.check:
        manifest_page.check(project)
        return EXIT_CLEAN
    result["pages"] = [str(page) for page in manifest_page.write(project)]
    print("\n".join(result["pages"]))
    return EXIT_CLEAN


def _matrix_rows(project: Project, options: Namespace) -> list[matrix_run.Row]:
    known = registry.releases(project.cache)
    first = _version(options.first, known)
    last = _version(options.last if options.last != "latest" else known[-1], known)
    versions = [version for version in known if first <= Version(version) <= last]
    if not versions:
        raise Refused(f"No release lies between {first} and {last}", fix=f"releases are {known[0]} to {known[-1]}")
    return matrix_run.run(project, registry.archives(versions, project.cache), options.jobs)


def _version(text: str, known: list[str]) -> Version:
    try:
        return Version(text)
    except InvalidVersion as error:
        raise Refused(f"Not a version: {text!r}", fix=f"use one from {known[0]} to {known[-1]}, or latest") from error
