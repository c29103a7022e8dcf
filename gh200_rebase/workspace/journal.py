"""The record of a run that changes a tree: written before the first change, gone after the last one."""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import asdict, dataclass
from pathlib import Path

from ..system.durable import write_atomic
from ..system.gitrepo import git_path

FORK_BRANCH = "gh200-reintegration"
UPSTREAM_BRANCH = "upstream"
LOG, SCRIPT, PATCH, CHECKLIST = "MERGE_LOG.txt", "ROLLBACK.sh", "gh200-current.patch", "GH200_REBASE_CHECKLIST.md"
RUN_FILES = (LOG, SCRIPT, PATCH, CHECKLIST)
CRASH_AT = "GH200_REBASE_CRASH_AT"
"""Test hook: the process kills itself with SIGKILL, or with SIGTERM for NAME:TERM, when it reaches that step."""


@dataclass(frozen=True)
class Run:
    """One change of a tree: where it was, where it goes. `branch` is None when HEAD was detached."""

    backup: str
    branch: str | None
    before: str
    fork_before: str | None
    fork_after: str
    upstream_before: str | None
    upstream_after: str | None
    action: str = "apply"

    def lines(self) -> str:
        """The part of MERGE_LOG.txt that ROLLBACK.sh reads."""
        return "".join(
            f"{name}: {value}\n"
            for name, value in (
                ("Backup branch", self.backup),
                ("Checked out before", self.branch or "detached"),
                ("Commit before", self.before),
                (f"{FORK_BRANCH} before", self.fork_before or "absent"),
                (f"{FORK_BRANCH} after", self.fork_after),
                (f"{UPSTREAM_BRANCH} before", self.upstream_before or "absent"),
                (f"{UPSTREAM_BRANCH} after", self.upstream_after or "absent"),
            )
        )


def store(repo: Path, backup: str = "") -> Path:
    """Where the tool keeps its own files: inside .git, so that they are never part of the tree."""
    return git_path(repo, "gh200") / backup


def write(repo: Path, run: Run) -> None:
    write_atomic(store(repo) / "journal.json", json.dumps(asdict(run)).encode())


def read(repo: Path) -> dict[str, str | None] | None:
    """The unfinished run, if there is one. ROLLBACK.sh writes only `action` and `backup`."""
    path = store(repo) / "journal.json"
    return json.loads(path.read_bytes()) if path.exists() else None


def clear(repo: Path) -> None:
    (store(repo) / "journal.json").unlink(missing_ok=True)


def install(repo: Path, name: str, text: str) -> None:
    """Put a file into the tree; its unfinished form lies inside .git, where it makes no tree dirty."""
    place = store(repo) / "install"
    write_atomic(place, text.encode())
    shutil.move(place, repo / name)


def step(name: str) -> None:
    """Name a moment between two changes, for the tests that kill the process there."""
    at, _, how = os.environ.get(CRASH_AT, "").partition(":")
    if at == name:
        os.kill(os.getpid(), signal.SIGTERM if how == "TERM" else signal.SIGKILL)
