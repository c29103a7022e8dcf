"""Commands that make a tree or a wheel, or look at one that was made."""

from __future__ import annotations

import tempfile
from argparse import Namespace
from pathlib import Path

from packaging.version import Version

from .. import flow
from ..delivery import verify as verify_made
from ..delivery import wheel as wheel_build
from ..errors import EXIT_ANCHOR, EXIT_CLEAN
from ..pages import report
from ..project import Project
from ..upstream import registry
from ..workspace import builds
from .common import Result, assess_into, fetched


def apply(project: Project, options: Namespace, result: Result) -> int:
    """Build or update the fork."""
    into = options.into or project.fork
    if options.rollback or options.resume:
        return flow.recover(into, options, result)
    if not options.dry_run:
        # Before anything that takes time: a tree that cannot be written is rejected at once.
        builds.require_ready(into)
        if into == project.fork:
            builds.require_unchanged(into)
    upstream = fetched(project, options.upstream)
    if options.skip_tests and not options.dry_run and flow.already_built(project, upstream, into):
        flow.say_already_built(upstream, into)
        result.update(into=str(into), already=True)
        return EXIT_CLEAN
    assessment = assess_into(project, upstream, result)
    edits = report.edits_table(assessment, noted_only=not (options.dry_run or options.verbose))
    print(*filter(None, (edits, report.summary(assessment))), sep="\n\n")
    assessment.require(options.accept_drift)
    if options.dry_run:
        print("\ndry run: nothing was written")
        return EXIT_CLEAN
    return flow.apply(project, upstream, assessment, into, skip_tests=options.skip_tests, result=result)


def status(project: Project, options: Namespace, result: Result) -> int:
    """Print the state of the fork and of the lock."""
    result.update(flow.state(project, options.into or project.fork))
    print("\n".join(f"{name:<18}{value}" for name, value in result.items() if name not in ("command", "exit_code")))
    return EXIT_CLEAN


def wheel(project: Project, options: Namespace, result: Result) -> int:
    """Build the wheel of the fork."""
    fork = (options.fork or project.fork).resolve()
    built = wheel_build.build_wheel(project, fork, (options.into or project.build / "dist").resolve())
    result["wheel"] = str(built)
    print(built)
    return EXIT_CLEAN


def verify(project: Project, options: Namespace, result: Result) -> int:
    """Compare a wheel or a tree with one made anew."""
    claim = verify_made.read_claim(options.made.resolve(), options.upstream)
    upstream = fetched(project, options.upstream or claim.upstream)
    archive = "(not a release)"
    if upstream.spec.kind == "pypi":
        path = registry.sdist(Version(upstream.version), project.cache)
        archive = verify_made.require_known_archive(project.lock, upstream.version, path)
    assessment = assess_into(project, upstream, result)
    # Whether it should have been built is another question.
    assessment.require(accept_drift=True)
    project.build.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".verify-", dir=project.build) as scratch:
        fork = Path(scratch) / "fork"
        tip = flow.make(project, upstream, assessment, fork)
        if claim.is_wheel:
            expected = wheel_build.build_wheel(project, fork, Path(scratch) / "dist")
            differences = verify_made.wheel_differences(claim.path, expected)
        else:
            differences = verify_made.tree_differences(claim.path, fork)
    result.update(made=str(claim.path), commit=tip, archive=archive, differences=differences)
    if not differences:
        print(f"verified: {claim.path} is what these patches make of {upstream.label}")
        print(f"commit {tip}, source archive sha256 {archive}")
        return EXIT_CLEAN
    more = [f"... and {len(differences) - verify_made.SHOWN} more"] if len(differences) > verify_made.SHOWN else []
    print(f"NOT what these patches make of {upstream.label}: {claim.path}")
    print("\n".join(f"  {line}" for line in [*differences[: verify_made.SHOWN], *more]))
    return EXIT_ANCHOR
