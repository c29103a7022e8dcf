"""Commands about many upstreams at once: every release, and what was recorded of them."""

from __future__ import annotations

from argparse import Namespace

from packaging.version import InvalidVersion, Version

from ..errors import EXIT_CLEAN, AnchorFailed, Rejected
from ..lock import matrix as matrix_run
from ..pages import manifest as manifest_page
from ..patches import lockfile
from ..project import Project
from ..upstream import registry
from .common import Result

OLDEST = "4.0.6"


def matrix(project: Project, options: Namespace, result: Result) -> int:
    """Assess every release of a range and print a table."""
    rows = _matrix_rows(project, options)
    print(matrix_run.render(rows, project.lock))
    result.update(matrix_run.as_json(rows, project.lock))
    return matrix_run.exit_code(rows, project.lock)


def lock(project: Project, options: Namespace, result: Result) -> int:
    """Verify every release and rewrite the lock and the generated pages."""
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
    """Write the generated pages, or check them."""
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
        raise Rejected(f"No release lies between {first} and {last}", fix=f"releases are {known[0]} to {known[-1]}")
    return matrix_run.run(project, registry.archives(versions, project.cache), options.jobs)


def _version(text: str, known: list[str]) -> Version:
    try:
        return Version(text)
    except InvalidVersion as error:
        raise Rejected(f"Not a version: {text!r}", fix=f"use one from {known[0]} to {known[-1]}, or latest") from error
