"""One function per command: (project, options, result) -> exit code. `result` is what --json writes."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from packaging.version import InvalidVersion, Version

from . import flow
from .delivery import wheel as wheel_build
from .errors import EXIT_ANCHOR, EXIT_CLEAN, EXIT_DRIFT, AnchorFailed, Refused
from .lock import matrix as matrix_run
from .lock.assess import Assessment, assess
from .pages import manifest as manifest_page
from .pages import report
from .patches import lockfile
from .project import Project
from .syntax.tree import FolderTree
from .upstream import registry
from .upstream.fetch import Upstream, fetch, parse_spec

Result = dict[str, Any]


def apply(project: Project, options: Namespace, result: Result) -> int:
    into = options.into or project.build / "fork"
    if options.rollback or options.resume:
        return flow.recover(into, options, result)
    upstream = _fetched(project, options)
    if options.skip_tests and not options.dry_run and flow.already_built(project, upstream, into):
        flow.say_already_built(upstream, into)
        result.update(into=str(into), already=True)
        return EXIT_CLEAN
    assessment = _assess(project, upstream, result)
    edits = report.edits_table(assessment, noted_only=not (options.dry_run or options.verbose))
    print(*filter(None, (edits, report.summary(assessment))), sep="\n\n")
    assessment.require(options.accept_drift)
    if options.dry_run:
        print("\ndry run: nothing was written")
        return EXIT_CLEAN
    return flow.apply(project, upstream, assessment, into, skip_tests=options.skip_tests, result=result)


def check(project: Project, options: Namespace, result: Result) -> int:
    _, assessment = _assessed(project, options, result)
    print(report.edits_table(assessment), report.summary(assessment), sep="\n\n")
    for failure in assessment.failures:
        print(f"\nFAILED {failure}")
    for violation in assessment.violations:
        print(f"\nMISPLACED {violation.edit_key} ({violation.file}:{violation.line}): {violation.what}")
    for drift in assessment.to_review:
        print(f"\nTO REVIEW {drift.edit_key} ({drift.file}:{drift.line}): {drift.what}")
    if assessment.exit_code == EXIT_DRIFT and options.accept_drift:
        return EXIT_CLEAN
    return assessment.exit_code


def status(project: Project, options: Namespace, result: Result) -> int:
    result.update(flow.state(project, options.into or project.build / "fork"))
    print("\n".join(f"{name:<18}{value}" for name, value in result.items() if name not in ("command", "exit_code")))
    return EXIT_CLEAN


def explain(project: Project, options: Namespace, result: Result) -> int:
    chosen = [
        patch for patch in project.patches if options.patch in (str(patch.number), patch.name, f"{patch.number:02}")
    ]
    if not chosen:
        known = ", ".join(sorted(patch.name for patch in project.patches))
        raise Refused(
            f"There is no patch {options.patch!r}", where=str(project.root / "patches"), fix=f"use one of {known}"
        )
    upstream, assessment = _assessed(project, options, result)
    print(report.explain(chosen[0], assessment, FolderTree(upstream.root)))
    return EXIT_ANCHOR if assessment.failures else EXIT_CLEAN


def export(project: Project, options: Namespace, result: Result) -> int:
    if options.into is None:
        raise Refused("export needs a folder", fix="name it: export --into DIR")
    into = options.into.resolve()
    if into.is_relative_to(project.root) and not into.is_relative_to(project.build):
        raise Refused(
            "The diffs hold upstream's lines, and those are never stored in this repository",
            where=str(into),
            fix="choose a folder outside it, or below build/",
        )
    upstream, assessment = _assessed(project, options, result)
    assessment.require(accept_drift=True)
    written = report.export(project.patches, assessment, FolderTree(upstream.root), into)
    print("\n".join(str(path) for path in written))
    return EXIT_CLEAN


def matrix(project: Project, options: Namespace, result: Result) -> int:
    rows = _matrix_rows(project, options)
    print(matrix_run.render(rows, project.lock))
    result.update(matrix_run.as_json(rows, project.lock))
    return matrix_run.exit_code(rows, project.lock)


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
    lockfile.save(new, project.lock_path)
    pages = manifest_page.write(Project(project.root))
    print("\n".join(["accepted: " + move for move in moved] or ["nothing had moved since the last lock"]))
    print(f"{len(rows)} releases verified; written:", project.lock_path, *pages)
    result["accepted"] = moved
    return EXIT_CLEAN


def wheel(project: Project, options: Namespace, result: Result) -> int:
    fork = (options.fork or project.build / "fork").resolve()
    built = wheel_build.build_wheel(project, fork, (options.into or project.build / "dist").resolve())
    result["wheel"] = str(built)
    print(built)
    return EXIT_CLEAN


def manifest(project: Project, options: Namespace, result: Result) -> int:
    if options.check:
        manifest_page.check(project)
        return EXIT_CLEAN
    result["pages"] = [str(page) for page in manifest_page.write(project)]
    print("\n".join(result["pages"]))
    return EXIT_CLEAN


def _assessed(project: Project, options: Namespace, result: Result) -> tuple[Upstream, Assessment]:
    upstream = _fetched(project, options)
    return upstream, _assess(project, upstream, result)


def _fetched(project: Project, options: Namespace) -> Upstream:
    return fetch(parse_spec(options.upstream or _default_spec(project)), project.cache)


def _assess(project: Project, upstream: Upstream, result: Result) -> Assessment:
    assessment = assess(project, FolderTree(upstream.root), upstream.label, upstream.version)
    result.update(assessment.as_json())
    return assessment


def _default_spec(project: Project) -> str:
    newest = project.lock.newest()
    if newest is None:
        raise Refused(
            "The lock has verified no release yet",
            where=str(project.lock_path),
            fix="name one with --upstream pypi:VERSION, or verify all with `./execute_gh200_rebase.sh lock`",
        )
    return f"pypi:{newest}"


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
