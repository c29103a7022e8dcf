"""Looks at the directory a fork shall be written into, and rejects any state that a run could spoil. Writes nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from ..errors import Rejected
from ..system.gitrepo import USERS, changes, git, git_path, require_git, text, tip, tree_paths
from ..upstream.pristine import MARK
from . import journal
from .rollback import UNFINISHED_FIX

_BLOCK, _SPARE = 4096, 1 << 20
_UNDERWAY = {
    "MERGE_HEAD": ("a merge", "git merge --abort"),
    "rebase-merge": ("a rebase", "git rebase --abort"),
    "rebase-apply": ("a rebase or am", "git rebase --abort or git am --abort"),
    "CHERRY_PICK_HEAD": ("a cherry-pick", "git cherry-pick --abort"),
    "REVERT_HEAD": ("a revert", "git revert --abort"),
    "BISECT_LOG": ("a bisect", "git bisect reset"),
}


def preflight(into: Path) -> None:
    """Reject unless `into` is absent, empty, or a clean git checkout of SimpleTuner."""
    require_git()
    into = into.resolve()
    if not (into / ".git").exists():
        if into.exists() and (not into.is_dir() or any(into.iterdir())):
            raise Rejected(
                "The directory for the fork holds other things",
                where=str(into),
                why="it is not empty and not a git checkout",
                fix="choose another directory with --into DIR, or empty this one",
            )
        return
    if journal.read(into):
        raise Rejected("The last run on this tree did not come to its end", where=str(into), fix=UNFINISHED_FIX)
    if not tip(into, "HEAD"):
        raise Rejected(
            "This git checkout has no commit yet",
            where=str(into),
            fix="remove the directory, or choose another one with --into DIR",
        )
    problems = [*_unfit(into), *_underway(into), *_dirty(into), *_overlooked(into)]
    if problems:
        raise Rejected(
            "The checkout is not ready for a run",
            where=str(into),
            why="\n".join(why for why, _ in problems),
            fix="\n".join(fix for _, fix in problems),
        )


def _unfit(repo: Path) -> Iterable[tuple[str, str]]:
    if MARK not in tree_paths(repo, "HEAD"):
        yield f"it is not a checkout of SimpleTuner: {MARK} is missing", "choose another directory with --into DIR"
    if git_path(repo, "index.lock").exists():
        yield "another git command holds index.lock", "wait for it; if none is running, remove .git/index.lock"
    worktrees = [block.splitlines() for block in text(repo, "worktree", "list", "--porcelain").split("\n\n")]
    if any(
        f"branch refs/heads/{journal.FORK_BRANCH}" in lines and f"worktree {repo}" not in lines for lines in worktrees
    ):
        yield (
            f"branch {journal.FORK_BRANCH} is checked out in another worktree",
            "run there, or switch that worktree to another branch",
        )


def _underway(repo: Path) -> Iterable[tuple[str, str]]:
    for name, (what, abort) in _UNDERWAY.items():
        if git_path(repo, name).exists():
            yield f"{what} is under way", f"finish it, or {abort}"


def _dirty(repo: Path) -> Iterable[tuple[str, str]]:
    found = changes(repo)
    if found:
        more = [f"... and {len(found) - 10} more"] if len(found) > 10 else []
        yield "\n".join(["it has changes:", *found[:10], *more]), "commit them, or put them aside with `git stash -u`"


def _overlooked(repo: Path) -> Iterable[tuple[str, str]]:
    """Edits in files git was told to overlook: `git status` does not show them, a checkout would take them."""
    listed = [os.fsdecode(line) for line in git(repo, "ls-files", "-v", "-z").split(b"\0") if line]
    flagged = [line[2:] for line in listed if (line[0].islower() or line[0] == "S") and (repo / line[2:]).is_file()]
    if not flagged:
        return
    names = "\n".join(flagged).encode("utf-8", "surrogateescape")
    present = git(repo, "hash-object", "--stdin-paths", stdin=names).decode().split()
    wanted = dict(_blob(line) for line in git(repo, "ls-tree", "-r", "-z", "HEAD").split(b"\0") if line)
    edited = [path for path, blob in zip(flagged, present, strict=True) if wanted.get(path) != blob]
    if edited:
        yield (
            "\n".join(["it has changes that git was told to overlook:", *edited[:10]]),
            "let git see them: `git update-index --no-assume-unchanged --no-skip-worktree FILE`, then commit or stash",
        )


def _blob(line: bytes) -> tuple[str, str]:
    facts, _, path = line.partition(b"\t")
    return os.fsdecode(path), facts.split()[2].decode()


def reject_overwrites(repo: Path, head: str, coming: str) -> None:
    """Reject when a file git does not track, ignored ones included, lies where the new tree has one."""
    tracked, wanted = tree_paths(repo, head), tree_paths(repo, coming)
    own = sorted(wanted & set(journal.RUN_FILES))
    if own:
        raise Rejected(
            "Upstream or a patch brings files that the run itself writes",
            why=", ".join(own),
            fix="rename them in the patch",
        )
    in_way = sorted({hit for path in wanted - tracked for hit in _in_way(repo, path, tracked)})
    # A user's own configs are kept aside by the run itself, with their place named.
    in_way = [path for path in in_way if not path.startswith(USERS)]
    if in_way:
        raise Rejected(
            "Files that git does not track are in the way of the fork's own",
            where=str(repo),
            why="\n".join(in_way[:10]),
            fix="move them elsewhere, then run again",
        )


def reject_full_disk(repo: Path, coming: str) -> None:
    """Reject before the first change when the new tree may not fit: half a checkout would have no room to go back."""
    sizes = [
        int(line.split()[3])
        for line in git(repo, "ls-tree", "-r", "-l", "-z", coming).split(b"\0")
        if b" blob " in line
    ]
    needed = sum(size + _BLOCK for size in sizes) + _SPARE
    free = shutil.disk_usage(repo).free
    if free < needed:
        raise Rejected(
            "The disk is too full for the fork",
            where=str(repo),
            why=f"space for {needed >> 20} MiB is needed, {free >> 20} MiB are free",
            fix="free some space on that disk and run the same command again",
        )


def _in_way(repo: Path, path: str, tracked: set[str]) -> Iterable[str]:
    place = repo / path
    for parent in place.relative_to(repo).parents:
        solid = os.path.lexists(repo / parent) and ((repo / parent).is_symlink() or not (repo / parent).is_dir())
        if solid and str(parent) not in tracked:
            yield str(parent)
    if place.is_dir() and not place.is_symlink():
        inside = (p for p in place.rglob("*") if p.is_symlink() or not p.is_dir())
        yield from (name for p in inside if (name := p.relative_to(repo).as_posix()) not in tracked)
    elif os.path.lexists(place) and not any(str(parent) in tracked for parent in place.relative_to(repo).parents):
        yield path
