"""Writes the fork as git history, pristine upstream first and one commit per step; no index, file or branch is touched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import Rejected
from ..system.gitrepo import (
    NOBODY,
    Commit,
    File,
    git,
    last_with_trailer,
    text,
    tip,
    trailer,
    write_commits,
)
from ..upstream import pristine
from ..upstream.archive import name_problem
from ..upstream.fetch import Upstream

FORK_BRANCH = "gh200-reintegration"
UPSTREAM_BRANCH = "upstream"
PRISTINE, BASE = "Gh200-Pristine", "Gh200-Base"


@dataclass(frozen=True)
class Step:
    """One commit of the fork: `files` maps a path to its full bytes and whether it is executable."""

    subject: str
    body: str
    trailers: Mapping[str, str]
    files: Mapping[str, tuple[bytes, bool]]


@dataclass(frozen=True)
class History:
    """The commits of one fork, on the pristine upstream."""

    pristine: str
    commits: tuple[str, ...]

    @property
    def tip(self) -> str:
        """The last commit."""
        return self.commits[-1] if self.commits else self.pristine


def write_history(repo: Path, upstream: Upstream, steps: Sequence[Step]) -> History:
    """Add the commits to the repository's objects."""
    bad = [f"{path}: it {why}" for one in steps for path in one.files if (why := name_problem(path))]
    if bad:
        raise Rejected("A patch writes to a path that is not safe", why="\n".join(bad), fix="correct the patch")
    first = _pristine(repo, upstream)
    return History(first, _write_steps(repo, steps, first))


def _pristine(repo: Path, upstream: Upstream) -> str:
    """The commit the steps follow: upstream's own where the repository has its history, else a release as one commit."""
    head = tip(repo, "HEAD")
    previous = last_with_trailer(repo, "HEAD", PRISTINE) if head else None
    commit = upstream.git_commit if upstream.spec.kind == "git" else None
    if commit and (tip(repo, commit) or (head and not previous)):
        if not tip(repo, commit):
            git(repo, "fetch", "--quiet", "--no-tags", "--end-of-options", str(upstream.mirror), commit)
        return commit
    # One of an older revision of this tool has its builder's name and a past, and so another id.
    signed = text(repo, "show", "--no-patch", "--format=%an <%ae>%P", previous) if previous else ""
    if previous and signed == NOBODY and trailer(repo, previous, PRISTINE) == upstream.digest:
        return previous
    return _import_pristine(repo, upstream)


def _import_pristine(repo: Path, upstream: Upstream) -> str:
    """A commit without a parent: its id depends on the upstream, not on what the repository had before."""
    trailers = {"Gh200-Upstream": upstream.label.replace(":", " ", 1), PRISTINE: upstream.digest}
    message = _message(f"Upstream SimpleTuner {upstream.version}, untouched", "", trailers)
    files = pristine.files(upstream.root)
    return write_commits(repo, [Commit(message, files, replaces_all=True)], None, upstream.seconds)


def _write_steps(repo: Path, steps: Sequence[Step], first: str) -> tuple[str, ...]:
    """The date is the pristine commit's own, so the same input gives the same commits on any day."""
    seconds = int(text(repo, "show", "--no-patch", "--format=%ct", first))
    commits = [
        Commit(
            _message(one.subject, one.body, {**one.trailers, BASE: first}),
            [
                File(path, "100755" if executable else "100644", data)
                for path, (data, executable) in sorted(one.files.items())
            ],
        )
        for one in steps
    ]
    last = write_commits(repo, commits, first, seconds) if commits else first
    return tuple(text(repo, "rev-list", "--reverse", f"{first}..{last}").split())


def _message(subject: str, body: str, trailers: Mapping[str, str]) -> str:
    parts = (subject.strip(), body.strip(), "\n".join(f"{key}: {value}" for key, value in trailers.items()))
    return "\n\n".join(part for part in parts if part) + "\n"
