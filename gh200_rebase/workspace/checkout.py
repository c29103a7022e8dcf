"""The fork as a branch of a checkout that is a user's own: commits and branches are added, files follow by plain git."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ..errors import Rejected
from ..system.gitrepo import changes, checked_out, git, git_path, text, tip, tree_paths, update_refs
from ..upstream.pristine import MARK
from .history import FORK_BRANCH, UPSTREAM_BRANCH, History
from .run_files import RUN_FILES, Before, backup_name

_BLOCK, _SPARE = 4096, 1 << 20
_UNDERWAY = {
    "MERGE_HEAD": "a merge",
    "rebase-merge": "a rebase",
    "rebase-apply": "a rebase or am",
    "CHERRY_PICK_HEAD": "a cherry-pick",
    "REVERT_HEAD": "a revert",
    "BISECT_LOG": "a bisect",
    "index.lock": "another git command",
}
_FORK = f"refs/heads/{FORK_BRANCH}"


def require_checkout(repo: Path) -> None:
    """Reject a directory that is not a checkout of SimpleTuner with a commit."""
    if not tip(repo, "HEAD"):
        raise Rejected(
            "This git checkout has no commit yet",
            where=str(repo),
            fix="remove the directory, or choose another one with --into DIR",
        )
    if MARK not in tree_paths(repo, "HEAD"):
        raise Rejected(
            "This is not a checkout of SimpleTuner",
            where=str(repo),
            why=f"{MARK} is missing in its commit",
            fix="choose another directory with --into DIR",
        )


def unclean(repo: Path) -> list[str]:
    """Why the tree must not be switched to another commit now; empty where plain git can lose nothing."""
    found = [f"{what} is under way" for name, what in _UNDERWAY.items() if git_path(repo, name).exists()]
    listed = [line for line in git(repo, "ls-files", "-v", "-z").split(b"\0") if line]
    # git checkout overwrites files with these flags without comparing them.
    flagged = [os.fsdecode(line[2:]) for line in listed if line[:1].islower() or line[:1] == b"S"]
    found += [f"assume-unchanged or skip-worktree is set: {name}" for name in flagged[:5]]
    changed = changes(repo)
    return [*found, *changed[:10], *([f"... and {len(changed) - 10} more"] if len(changed) > 10 else [])]


def publish(repo: Path, history: History) -> tuple[Before, list[str]]:
    """Add the branches, then check the fork out if the tree is clean; returns why it was not checked out."""
    new, old = history.tip, tip(repo, _FORK)
    before = Before(checked_out(repo), text(repo, "rev-parse", "HEAD"), backup_name(repo))
    problems = unclean(repo)
    if old == new and (problems or before.branch == _FORK):
        return replace(before, backup=""), problems
    if old and old != new:
        _require_movable(repo, before, problems)
    _reject_own_names(repo, new)
    added = {f"refs/heads/{before.backup}": before.commit, f"refs/gh200/{before.backup}/fork": old}
    if not tip(repo, f"refs/heads/{UPSTREAM_BRANCH}"):
        added[f"refs/heads/{UPSTREAM_BRANCH}"] = history.pristine
    update_refs(repo, {name: sha for name, sha in added.items() if sha})
    if old and old != new and before.branch == _FORK:
        _check_out(repo, "--detach", new)
    # Only from the commit that was looked at: commits made since then stop the run.
    git(repo, "update-ref", _FORK, new, old or "0" * len(new))
    if not problems:
        _check_out(repo, FORK_BRANCH)
    return before, problems


def _require_movable(repo: Path, before: Before, problems: list[str]) -> None:
    """The branch is there from an earlier run: its commits stay under the backup's name, its worktree must be clean."""
    trees = text(repo, "worktree", "list", "--porcelain").split("\n\n")
    elsewhere = [tree.splitlines()[0] for tree in trees if f"branch {_FORK}" in tree.splitlines()]
    here = before.branch == _FORK
    if len(elsewhere) > here:
        raise Rejected(
            f"Branch {FORK_BRANCH} is checked out in another worktree",
            where="\n".join(elsewhere),
            fix="run there, or switch that worktree to another branch",
        )
    if here and problems:
        raise Rejected(
            f"Branch {FORK_BRANCH} is checked out here, and the tree has changes",
            where=str(repo),
            why="\n".join(problems),
            fix="commit them, or put them aside with `git stash -u`; finish what is under way",
        )


def _reject_own_names(repo: Path, commit: str) -> None:
    own = sorted(tree_paths(repo, commit) & set(RUN_FILES))
    if own:
        raise Rejected(
            "Upstream or a patch brings files that the run itself writes",
            why=", ".join(own),
            fix="rename them in the patch",
        )


def _check_out(repo: Path, *target: str) -> None:
    """Plain git: it stops for files that it would overwrite, ignored ones too."""
    _reject_full_disk(repo, target[-1])
    in_way = sorted(_ignored_in_way(repo, target[-1]))
    if in_way:
        raise Rejected(
            "Files that git ignores are in the way of the fork; it was not checked out",
            where=str(repo),
            why="\n".join(in_way[:10]),
            fix="move them elsewhere, then run the same command again",
        )
    git(repo, "checkout", "--quiet", "--no-overwrite-ignore", *target, "--")


def _ignored_in_way(repo: Path, commit: str) -> Iterator[str]:
    """Files that git does not track, where the commit has one, a directory or a parent."""
    tracked = tree_paths(repo, "HEAD")
    for path in tree_paths(repo, commit) - tracked:
        for part in (path, *(str(parent) for parent in Path(path).parents)):
            place = repo / part
            if part not in tracked and os.path.lexists(place) and (place.is_symlink() or not place.is_dir()):
                yield part
        if (repo / path).is_dir():
            yield from (
                name for name in (str(p.relative_to(repo)) for p in (repo / path).rglob("*")) if name not in tracked
            )


def _reject_full_disk(repo: Path, commit: str) -> None:
    """Half a checkout would be a tree that is neither; so look before the first file."""
    listed = git(repo, "ls-tree", "-r", "-l", "-z", commit).split(b"\0")
    needed = sum(int(line.split()[3]) + _BLOCK for line in listed if b" blob " in line) + _SPARE
    free = shutil.disk_usage(repo).free
    if free < needed:
        raise Rejected(
            "The disk is too full for the fork",
            where=str(repo),
            why=f"{needed >> 20} MiB are needed, {free >> 20} MiB are free",
            fix="free some space on that disk and run the same command again",
        )
