"""Looks for a release newer than the lock, and prepares a branch of this repository for a person to read and push."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from packaging.version import Version

from ..errors import EXIT_ANCHOR, EXIT_CLEAN, Rejected
from ..pages import watch as page
from ..project import Project
from ..system.durable import remove_tree, write_atomic
from ..system.gitrepo import NOBODY, git, tip
from ..upstream import registry
from .common import Result

# Without the tests a run takes minutes, and those of a release hours.
_LIMIT = 4 * 3600


def watch_upstream(project: Project, options: Namespace, result: Result) -> int:
    """Assess, repair, test and describe the newest release, on a branch; nothing is pushed."""
    newest = options.release or registry.latest(project.cache)
    locked = project.lock.newest()
    result.update(newest=newest, locked=locked)
    if locked and Version(newest) <= Version(locked):
        print(f"nothing to do: {newest} is the newest release, and the lock has verified {locked}")
        return EXIT_CLEAN
    branch = f"rebase-{newest}"
    if tip(project.root, f"refs/heads/{branch}"):
        print(f"nothing to do: branch {branch} is there already; delete it to have it made again")
        return EXIT_CLEAN
    place = _worktree(project, branch)
    try:
        steps = _steps(
            place, newest, min(project.lock.releases, key=Version, default=newest), skip_tests=options.skip_tests
        )
        text = page.render(newest, locked, steps)
        written = project.build / "watch" / f"{newest}.md"
        write_atomic(written, text.encode())
        _commit(place, newest, text)
    finally:
        git(project.root, "worktree", "remove", "--force", str(place), ok=(0, 128))
        remove_tree(place)
    print(text)
    print(f"\nbranch {branch} has the commit, {written} the description; read both, then push it yourself")
    result.update(branch=branch, description=str(written), steps=steps)
    return int(steps["check"]["exit_code"])


def _worktree(project: Project, branch: str) -> Path:
    """A worktree of this repository at HEAD: the tree that people work in is not touched."""
    if not (project.root / ".git").exists():
        raise Rejected(
            "watch-upstream needs the repository, with its history",
            where=str(project.root),
            fix="run it in a clone, not in a fork's tree or an archive",
        )
    place = project.build / "watch" / branch
    git(project.root, "worktree", "prune")
    remove_tree(place)
    git(project.root, "worktree", "add", "--quiet", "-b", branch, str(place), "HEAD")
    (place / "build").mkdir(exist_ok=True)
    for name in ("upstream", "matrix"):
        (project.build / name).mkdir(exist_ok=True)
        (place / "build" / name).symlink_to(project.build / name)
    return place


def _steps(place: Path, release: str, oldest: str, *, skip_tests: bool) -> dict[str, Any]:
    """The commands a maintainer would run, each with its exit code and its JSON."""
    spec = f"pypi:{release}"
    check = _run(place, "check", "--upstream", spec)
    if check["exit_code"] == EXIT_ANCHOR or check.get("violations"):
        proposed = _run(place, "check", "--upstream", spec, "--propose")
        check = _run(place, "check", "--upstream", spec) | {"proposals": proposed.get("proposals", {})}
    steps = {"check": check}
    if not steps["check"].get("failures"):
        tests = ["--skip-tests"] if skip_tests else []
        steps["build"] = _run(place, "apply", "--upstream", spec, "--accept-drift", *tests)
        steps["retire"] = _run(place, "retire", "--upstream", spec)
    if steps["check"]["exit_code"] == EXIT_CLEAN:
        steps["lock"] = _run(place, "lock", "--from", oldest)
    return steps


def _run(place: Path, *arguments: str) -> dict[str, Any]:
    """One command of the tool in the worktree; its environment is that of this process."""
    written = place / "build" / f"{arguments[0]}.json"
    command = [sys.executable, str(place / "gh200_rebase"), *arguments, "--json", str(written)]
    print(f"watch-upstream: {' '.join(arguments)}", flush=True)
    try:
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=_LIMIT, env={**os.environ})
    except subprocess.TimeoutExpired as error:
        return {"exit_code": 4, "error": str(error)}
    found = json.loads(written.read_text(encoding="utf-8")) if written.is_file() else {}
    return {"error": done.stderr[-2000:] if done.returncode else "", **found, "exit_code": done.returncode}


def _commit(place: Path, release: str, text: str) -> None:
    """What the steps have changed: repairs in patches/, the lock, generated pages."""
    git(place, "add", "--all", "--", "patches", "docs")
    name, _, mail = NOBODY.partition(" <")
    people = {
        f"GIT_{role}_{what}": value
        for role in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", name), ("EMAIL", mail.rstrip(">")))
    }
    message = f"patches: rebase on SimpleTuner {release}\n\n{text}"
    git(place, "commit", "--quiet", "--allow-empty", "--file", "-", stdin=message.encode(), env=people)
