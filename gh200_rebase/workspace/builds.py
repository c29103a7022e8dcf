"""Builds of the fork: each is made whole in a directory of its own, and one rename publishes it.

`build/fork` is a link to the current one in `build/forks`. A process that runs from an older build goes on there.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ..errors import Rejected
from ..system.durable import lock, rejecting_os_errors, remove_tree, write_atomic
from ..system.gitrepo import (
    checked_out,
    environment,
    git,
    git_path,
    note,
    require_git,
    text,
    tip,
    tree_paths,
    update_refs,
)
from ..upstream.fetch import Upstream
from . import checkout
from .history import FORK_BRANCH, UPSTREAM_BRANCH, History, Step, write_history
from .retention import IN_USE, carry_over, drop_old_builds
from .run_files import (
    CHECKLIST,
    EXCLUDED,
    LOG,
    PATCH,
    SCRIPT,
    Before,
    back_to_branch,
    back_to_build,
    backup_name,
    current_patch,
    exclude,
    install,
    log_text,
    store,
)

_PATIENCE = 600
# Wins over any .gitattributes of upstream: without it a checkout may rewrite line endings, $Id$ or encodings.
EXACT = "* -text -filter -ident -working-tree-encoding\n"


@dataclass(frozen=True)
class Built:
    """`already`: the fork was there before and nothing changed; `problems`: why a user's tree was not switched to it."""

    already: bool
    backup: str
    history: History
    tree: Path
    problems: tuple[str, ...] = ()


type Page = Callable[[Built], str]


def require_ready(into: Path) -> None:
    """Reject, before anything is fetched, a directory that cannot become the fork."""
    require_git()
    tree = into.resolve()
    if not (tree / ".git").exists():
        if tree.exists() and (not tree.is_dir() or any(tree.iterdir())):
            raise Rejected(
                "The directory for the fork holds other things",
                where=str(into),
                why="it is not empty and not a git checkout",
                fix="choose another directory with --into DIR, or empty this one",
            )
        return
    checkout.require_checkout(tree)


def require_unchanged(link: Path) -> None:
    """Reject a current build with changes of a user: in the next one they would be missing."""
    tree = link.resolve()
    found = checkout.unclean(tree) if (tree / ".git").exists() else []
    if found:
        raise Rejected(
            "The checkout is not ready for a run: it has changes",
            where=str(link),
            why="\n".join(found),
            fix="commit them, or put them aside with `git stash -u`",
        )


def build(into: Path, upstream: Upstream, steps: Sequence[Step], page: Page, *, linked: bool = False) -> Built:
    """Make the fork: `linked` as a new build behind the link, else in a new directory or as a branch of a checkout."""
    require_ready(into)
    if into.resolve().is_relative_to(upstream.root):
        raise Rejected(
            "The fork would be written into its own upstream directory",
            where=f"{into}\n{upstream.root}",
            fix="name another --into, or for a git checkout use --upstream git:DIR@REF",
        )
    with rejecting_os_errors(f"writing {into}"):
        if linked:
            return _next_build(into, upstream, steps, page)
        into = into.resolve()
        if (into / ".git").exists():
            return _branch(into, upstream, steps, page)
        into.parent.mkdir(parents=True, exist_ok=True)
        with lock(into.parent, f"making a directory in {into.parent}", patience=_PATIENCE):
            place = into.with_name(f".{into.name}.gh200-new")
            remove_tree(place)
            try:
                built = _whole(place, upstream, steps, page, None, "")
                os.rename(place, into)
            finally:
                remove_tree(place)
        return built


def _branch(repo: Path, upstream: Upstream, steps: Sequence[Step], page: Page) -> Built:
    with lock(repo, "changing this tree", patience=_PATIENCE):
        history = write_history(repo, upstream, steps)
        before, problems = checkout.publish(repo, history)
        built = Built(not before.backup, before.backup, history, repo, tuple(problems))
        if before.backup:
            _note(repo, history)
            exclude(repo, (*EXCLUDED, *_ignored_before(repo, before.commit, history.tip)))
            files = _run_files(built, before, upstream, page, back_to_branch(before, FORK_BRANCH))
            if problems:
                for name, data in files.items():
                    write_atomic(store(repo) / before.backup / name, data)
            else:
                install(repo, files)
    return built


def _ignored_before(repo: Path, commit: str, new: str) -> list[str]:
    """The lines of a .gitignore that the fork lacks: what it hid would make the tree look changed."""
    if ".gitignore" not in tree_paths(repo, commit) - tree_paths(repo, new):
        return []
    return text(repo, "cat-file", "blob", f"{commit}:.gitignore").splitlines()


def _next_build(link: Path, upstream: Upstream, steps: Sequence[Step], page: Page) -> Built:
    builds = link.with_name("forks")
    builds.mkdir(parents=True, exist_ok=True)
    with lock(builds, f"building in {builds}", patience=_PATIENCE):
        require_unchanged(link)
        old = link.resolve() if (link / ".git").exists() else None
        earlier = old if old and link.is_symlink() else _free(builds / "earlier")
        place = builds / f".new-{os.getpid()}"
        for leftover in builds.glob(".new-*"):
            remove_tree(leftover)
        try:
            built = _whole(place, upstream, steps, page, old, back_to_build("../../fork", f"forks/{earlier.name}"))
            if old and tip(old, "HEAD") == built.history.tip and checked_out(old) == f"refs/heads/{FORK_BRANCH}":
                return Built(True, "", built.history, old)
            final = _free(builds / f"{upstream.version}-{built.history.tip[:8]}")
            if old:
                carry_over(old, place, final, earlier)
            os.rename(place, final)
        finally:
            remove_tree(place)
        _switch(link, final, earlier)
        drop_old_builds(builds, final, earlier)
    return Built(False, built.backup, built.history, final)


def _whole(place: Path, upstream: Upstream, steps: Sequence[Step], page: Page, old: Path | None, script: str) -> Built:
    """A complete fork with its run's files in a directory that nobody else knows yet."""
    place.mkdir()
    git(place, "init", "--quiet", "--template=")
    git(place, "symbolic-ref", "HEAD", f"refs/heads/{UPSTREAM_BRANCH}")
    git(place, "config", "core.autocrlf", "false")
    write_atomic(git_path(place, "info/attributes"), EXACT.encode())
    history = write_history(place, upstream, steps)
    backup = backup_name(place)
    if old:
        git(place, "fetch", "--quiet", "--no-tags", str(old), f"HEAD:refs/heads/{backup}")
    refs = {f"refs/heads/{UPSTREAM_BRANCH}": history.pristine, f"refs/heads/{FORK_BRANCH}": history.tip}
    update_refs(place, refs | ({} if old else {f"refs/heads/{backup}": history.pristine}))
    _note(place, history)
    git(place, "checkout", "--quiet", FORK_BRANCH, "--")
    exclude(place)
    commit = text(place, "rev-parse", backup)
    before = Before(checked_out(old) if old else f"refs/heads/{UPSTREAM_BRANCH}", commit, backup)
    built = Built(False, backup, history, place)
    back = script if old else back_to_branch(before, FORK_BRANCH)
    install(place, _run_files(built, before, upstream, page, back))
    pristine = store(place) / "pristine"
    pristine.symlink_to(os.path.relpath(upstream.root, pristine.parent))
    (store(place) / IN_USE).touch()
    return built


def _run_files(built: Built, before: Before, upstream: Upstream, page: Page, script: str) -> dict[str, bytes]:
    return {
        LOG: log_text(built.tree, before, upstream, built.history).encode(),
        SCRIPT: script.encode(),
        PATCH: current_patch(built.tree, before.commit, upstream),
        CHECKLIST: page(built).encode(),
    }


def _note(repo: Path, history: History) -> None:
    note(repo, history.tip, f"on {datetime.now().astimezone():%Y-%m-%d %H:%M:%S %z}")


def _free(path: Path) -> Path:
    numbered = (path.with_name(f"{path.name}.{number}") for number in range(2, 1000))
    return next(one for one in (path, *numbered) if not one.exists())


def _switch(link: Path, final: Path, earlier: Path) -> None:
    """One rename; a directory of an older revision of this tool first moves in among the builds."""
    fresh = link.with_name(f".{link.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(os.path.relpath(final, link.parent))
    if link.is_dir() and not link.is_symlink():
        if any(link.iterdir()):
            os.rename(link, earlier)
        else:
            link.rmdir()
    os.replace(fresh, link)


def require_fork(into: Path) -> Path:
    """The tree behind `into`, which must be a git checkout."""
    require_git()
    tree = into.resolve()
    if not (tree / ".git").exists():
        raise Rejected(
            f"There is no fork at {into}",
            why="the directory is not a git checkout",
            fix="name the fork's tree with --into DIR",
        )
    return tree


def rollback(into: Path, yes: bool) -> str:
    """Run the tree's own ROLLBACK.sh; returns what it printed."""
    tree = require_fork(into)
    if not (tree / SCRIPT).is_file():
        raise Rejected("Nothing to roll back", where=str(tree), why=f"it has no {SCRIPT}", fix="see `status`")
    with lock(into.with_name("forks") if into.is_symlink() else tree, "changing this tree"):
        # Asking needs the terminal, so only the rejection is caught.
        done = subprocess.run(
            ["sh", str(tree / SCRIPT), *(["--yes"] if yes else [])],
            stdin=subprocess.DEVNULL if yes else None,
            stdout=subprocess.PIPE if yes else None,
            stderr=subprocess.PIPE,
            env=environment(tree),
            text=True,
            errors="replace",
        )
    if done.returncode:
        what, _, fix = done.stderr.strip().partition("\n  fix: ")
        raise Rejected(
            what or "Not confirmed: nothing was changed", where=str(tree), fix=fix or "answer y, or give --yes"
        )
    return (done.stdout or "").strip()
