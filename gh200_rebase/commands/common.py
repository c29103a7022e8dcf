"""What several commands do first: find the upstream that was asked for, and assess it."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from ..errors import Rejected
from ..lock.assess import Assessment, assess
from ..project import Project
from ..syntax.tree import DirectoryTree, Tree
from ..upstream.fetch import Upstream, fetch, parse_spec

Result = dict[str, Any]


def fetched(project: Project, asked: str | None) -> Upstream:
    """The requested upstream, or the newest verified release."""
    return fetch(parse_spec(asked or default_spec(project)), project.cache)


def assess_into(project: Project, upstream: Upstream, result: Result) -> Assessment:
    """Assess an upstream and add the result to the JSON."""
    assessment = assess(project, DirectoryTree(upstream.root), upstream.label, upstream.version)
    result.update(assessment.as_json())
    return assessment


def assessed(project: Project, options: Namespace, result: Result) -> tuple[Upstream, Assessment]:
    """Fetch the upstream of the options and assess it."""
    upstream = fetched(project, options.upstream)
    return upstream, assess_into(project, upstream, result)


def verified_tree(project: Project, asked: str | None) -> Tree | None:
    """What the edits were last verified on; where it cannot be had, a place is judged without it."""
    try:
        return DirectoryTree(fetched(project, asked).root)
    except Rejected as error:
        if asked:
            raise
        print(f"note: without the last verified release, only names and shapes are compared ({error.what})")
        return None


def default_spec(project: Project) -> str:
    """The newest release that the lock has verified."""
    newest = project.lock.newest()
    if newest is None:
        raise Rejected(
            "The lock has verified no release yet",
            where=str(project.lock_path),
            fix="name one with --upstream pypi:VERSION, or verify all with `./execute_gh200_rebase.sh lock`",
        )
    return f"pypi:{newest}"
