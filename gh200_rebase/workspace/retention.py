"""What stays when a build is replaced: a user's files, and older builds as long as something needs them."""

from __future__ import annotations

import fcntl
import filecmp
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ..errors import Rejected
from ..system.durable import remove_tree
from ..system.gitrepo import changes, git, text, tip
from .history import FORK_BRANCH, UPSTREAM_BRANCH
from .run_files import LOG, RUN_FILES, exclude, store

_KEPT_BUILDS = 3
_JOB_DAYS = 60
IN_USE = "in_use"
"""A training holds a shared lock on it (simpletuner.gh200.launch)."""
JOBS = ".jobs"
"""Links from Slurm jobs to the build they were started on (train.py makes them)."""
# Nobody keeps these; debug.log is what SimpleTuner writes where it runs.
_CACHES = ("__pycache__", ".pytest_cache", "build", ".venv", "debug.log")


def carry_over(old: Path, new: Path, final: Path, earlier: Path) -> None:
    """A user's own files: configs are copied, other entries linked; where the new build has one, the old keeps theirs."""
    carried = []
    for name in _own_entries(old):
        source, target = old / name, new / name
        if target.exists() or target.is_symlink():
            print(f"note: {name} is a file of the new build; yours is {source}")
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if name.startswith("config/"):
            shutil.copytree(source, target, symlinks=True) if source.is_dir() else shutil.copy2(source, target)
        else:
            origin = source.resolve()
            # The old tree may move to `earlier` when the link takes its name.
            origin = earlier / origin.relative_to(old) if origin.is_relative_to(old) else origin
            target.symlink_to(os.path.relpath(origin, (final / name).parent))
            carried.append(f"/{name}")
    exclude(new, tuple(carried))


def _own_entries(tree: Path) -> Iterator[str]:
    """Files and directories that are neither the fork's nor caches, uppermost first."""
    out = git(tree, "status", "--porcelain", "-z", "--no-renames", "--ignored=matching", "--untracked-files=all")
    for line in out.split(b"\0"):
        name = os.fsdecode(line[3:]).rstrip("/")
        known = name in RUN_FILES or name.split("/")[0] in _CACHES or name.split("/")[-1] in _CACHES
        if line[:2] in (b"??", b"!!") and not known and not name.endswith((".pyc", ".pyo")):
            yield name


def drop_old_builds(builds: Path, current: Path, previous: Path) -> None:
    """All but the newest few; never one that runs, waits for its Slurm job, or has something of a user in it."""
    forgotten = time.time() - _JOB_DAYS * 86_400
    for link in [link for link in (builds / JOBS).glob("*") if link.lstat().st_mtime < forgotten]:
        link.unlink()
    jobs = {link.resolve() for link in (builds / JOBS).glob("*")}
    others = [
        path
        for path in builds.iterdir()
        if path.is_dir() and path.name[:1] != "." and path not in {current, previous, *jobs}
    ]
    others.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in others[_KEPT_BUILDS - 2 :]:
        if not _in_use(path, current):
            # Out of the way by one rename, so that a kill leaves no half of it under its name.
            doomed = path.rename(builds / f".new-{path.name}")
            remove_tree(doomed)


def _in_use(tree: Path, current: Path) -> bool:
    """A process has it locked, or it has commits, changes or files that the current build has not."""

    def own_file(name: str) -> bool:
        ours, copy = tree / name, current / name
        # What the current build only links to is still in this one.
        linked = not copy.resolve().is_relative_to(current)
        return not (
            ours.is_symlink()
            or (ours.is_file() and not linked and copy.is_file() and filecmp.cmp(ours, copy, shallow=False))
        )

    with suppress(OSError, Rejected):
        handle = os.open(store(tree) / IN_USE, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(handle)
        branches = text(tree, "for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/stash").split()
        own = [name for name in branches if name not in (FORK_BRANCH, UPSTREAM_BRANCH) and "gh200-backup-" not in name]
        unmoved = tip(tree, "HEAD") == tip(tree, f"refs/heads/{FORK_BRANCH}") == _made(tree)
        return bool(own) or not unmoved or bool(changes(tree)) or any(map(own_file, _own_entries(tree)))
    return True


def _made(tree: Path) -> str:
    log = (tree / LOG).read_text(encoding="utf-8").splitlines()
    return next((line.partition(": ")[2] for line in log if line.startswith(f"{FORK_BRANCH} after: ")), "")
