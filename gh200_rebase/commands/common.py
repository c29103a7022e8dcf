"""What several commands do first: find the upstream that was asked for, and assess it."""

from __future__ import annotations

import hashlib
import pickle
import sys
from argparse import Namespace
from contextlib import suppress
from typing import Any

from ..errors import Rejected
from ..lock.assess import Assessment, assess
from ..project import Project
from ..syntax.tree import DirectoryTree, Tree
from ..system.durable import write_atomic
from ..upstream.fetch import Upstream, fetch, parse_spec

Result = dict[str, Any]
_KEPT = 8


def fetched(project: Project, asked: str | None) -> Upstream:
    """The requested upstream, or the newest verified release."""
    return fetch(parse_spec(asked or default_spec(project)), project.cache)


def assess_into(project: Project, upstream: Upstream, result: Result) -> Assessment:
    """Assess an upstream and add the result to the JSON."""
    assessment = _known(project, upstream)
    result.update(assessment.as_json())
    return assessment


def _known(project: Project, upstream: Upstream) -> Assessment:
    """The assessment of these very patches, lock and upstream; made once, and kept for the next command."""
    lock = project.lock_path.read_bytes() if project.lock_path.is_file() else b""
    state = hashlib.sha256("\0".join([*project.overlay.paths(), upstream.label, sys.version]).encode() + lock)
    state.update(f"{project.digest} {upstream.digest}".encode())
    place = project.build / "assessed" / state.hexdigest()[:32]
    with suppress(OSError, pickle.PickleError, AttributeError, EOFError, TypeError):
        known: Assessment = pickle.loads(place.read_bytes())
        return known
    assessment = assess(project, DirectoryTree(upstream.root), upstream.label, upstream.version)
    with suppress(OSError):
        write_atomic(place, pickle.dumps(assessment))
        for old in sorted(place.parent.iterdir(), key=lambda path: path.stat().st_mtime)[:-_KEPT]:
            old.unlink(missing_ok=True)
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
