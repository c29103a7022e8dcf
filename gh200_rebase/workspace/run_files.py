"""What a run writes beside the fork: its log, the difference before it, the checklist, and the script that goes back."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from ..system.durable import rejecting_os_errors, write_atomic
from ..system.gitrepo import git, git_path, last_with_trailer, text, tip, trailer
from ..upstream.fetch import Upstream
from .history import BASE, FORK_BRANCH, PRISTINE, UPSTREAM_BRANCH, History

LOG, SCRIPT, PATCH, CHECKLIST = "MERGE_LOG.txt", "ROLLBACK.sh", "gh200-current.patch", "GH200_REBASE_CHECKLIST.md"
RUN_FILES = (LOG, SCRIPT, PATCH, CHECKLIST)
# What operators put into the directory they start from, and what runs write there; such a tree is still clean.
_OPERATOR = (
    "config/your_*",
    "datasets",
    "debug.log",
    "cache",
    "output",
    "jobs",
    "baseline",
    "gh200_diagnostic_report.json",
)
EXCLUDED = (
    *(f"/{name}" for name in (*RUN_FILES, *_OPERATOR, "build", ".venv")),
    "__pycache__/",
    "*.py[co]",
    ".pytest_cache/",
)
_DIFF = ("--binary", "--full-index", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames")
_SCRIPT = """\
#!/bin/sh
# Undoes the GH200 rebase of this directory: {about}.   Usage: sh ROLLBACK.sh [--yes]
cd -P "$(dirname "$0")" || exit 4
changes=$(git status --porcelain --untracked-files=all | grep -v '^?? "*config/')
[ -z "$changes" ] || {{ printf '%s\\n' "The tree has changes:" "$changes" "  fix: commit them, or git stash -u" >&2; exit 4; }}
[ "${{1-}}" = --yes ] || {{ printf 'Return to %s? [y/N] ' {shown}; read -r answer; [ "$answer" = y ] || exit 4; }}
{command}
"""


@dataclass(frozen=True)
class Before:
    """The state a run starts from: the branch (None when detached) and commit, and the branch that keeps the latter."""

    branch: str | None
    commit: str
    backup: str


def store(repo: Path) -> Path:
    """Where the tool keeps files of its own: inside .git, so that they are never part of the tree."""
    return git_path(repo, "gh200")


def backup_name(repo: Path) -> str:
    """A branch name that is not taken."""
    moment = datetime.now().replace(microsecond=0)
    while tip(repo, f"refs/heads/{(name := f'gh200-backup-{moment:%Y%m%d_%H%M%S}')}"):
        moment += timedelta(seconds=1)
    return name


def back_to_branch(before: Before, fork_branch: str) -> str:
    """ROLLBACK.sh of a checkout: plain git, to the branch before; where that is the fork's own, to its backup."""
    name = (before.branch or "").removeprefix("refs/heads/")
    target = shlex.quote(name if name not in ("", fork_branch) else before.backup)
    kept = f'"$(git rev-parse --git-path gh200)/{before.backup}"'
    moved = " ".join(name for name in RUN_FILES)
    command = f"git checkout --no-overwrite-ignore {target} -- || exit 4\nmkdir -p {kept} && mv {moved} {kept}/ && echo Rolled back: {target} is checked out again"
    return _SCRIPT.format(about=f"git checkout {target}", shown=target, command=command)


def back_to_build(link: str, previous: str) -> str:
    """ROLLBACK.sh of a build: the link leads to the previous one again, and this one stays where it is."""
    old, at = shlex.quote(previous), shlex.quote(link)
    command = f'ln -s {old} {at}.$$ && mv -T {at}.$$ {at} && echo "Rolled back: the current build is {previous} again"'
    return _SCRIPT.format(about=f"the current build is {previous} again", shown=old, command=command)


def log_text(repo: Path, before: Before, upstream: Upstream, history: History) -> str:
    """MERGE_LOG.txt as it is when the fork is built."""
    listed = "".join(f"  {text(repo, 'show', '--no-patch', '--format=%H %s', one)}\n" for one in history.commits)
    fork = before.commit if before.branch == f"refs/heads/{FORK_BRANCH}" else "none"
    roots = text(repo, "rev-list", "--max-parents=0", before.commit).split()
    return (
        f"GH200 rebase of {datetime.now().astimezone():%Y-%m-%d %H:%M:%S %z}\n"
        f"Backup branch: {before.backup}\n"
        f"Checked out before: {before.branch or 'detached'}\n"
        f"Commit before: {before.commit}\n"
        f"{FORK_BRANCH} before: {fork}\n"
        f"{FORK_BRANCH} after: {history.tip}\n"
        f"{UPSTREAM_BRANCH} before: {roots[0]}\n"
        f"{UPSTREAM_BRANCH} after: {history.pristine}\n"
        f"Upstream: {upstream.label}, version {upstream.version}, sha256 {upstream.digest}\nCommits:\n{listed}"
    )


def current_patch(repo: Path, commit: str, upstream: Upstream) -> bytes:
    """The fork's own changes as they were before the run, against the upstream they were made on."""
    marked = last_with_trailer(repo, commit, BASE)
    other = upstream.git_commit if upstream.git_commit and tip(repo, upstream.git_commit) else tip(repo, "@{upstream}")
    merged = text(repo, "merge-base", commit, other, ok=(0, 1)) if other else ""
    base = (tip(repo, trailer(repo, marked, BASE)) if marked else None) or merged
    if not base and not trailer(repo, commit, PRISTINE):
        return f"# No upstream base is known for {commit}, so there is no difference to show.\n".encode()
    diff = git(repo, "diff", *_DIFF, "--src-prefix=a/", "--dst-prefix=b/", base, commit) if base else b""
    return diff or b"# The tree had no changes of the fork's own before this run.\n"


def install(tree: Path, files: dict[str, bytes]) -> None:
    """Put the run's files into the tree; one that is not as the tool wrote it is moved into .git, not overwritten."""
    place = store(tree)
    for name, data in files.items():
        target, written = tree / name, place / name
        unchanged = written.is_file() and target.is_file() and written.read_bytes() == target.read_bytes()
        if (target.exists() or target.is_symlink()) and not unchanged:
            kept = place / f"kept-{datetime.now():%Y%m%d_%H%M%S_%f}"
            kept.mkdir(parents=True)
            target.rename(kept / name)
        for path in (written, place / "install"):
            write_atomic(path, data, 0o755 if name == SCRIPT else 0o644)
        (place / "install").rename(target)


def exclude(repo: Path, names: tuple[str, ...] = EXCLUDED) -> None:
    """Keep the run's files and operators' directories out of `git status`; only adds lines."""
    path = git_path(repo, "info/exclude")
    present = path.read_bytes().splitlines() if path.exists() else []
    missing = [name.encode() for name in names if name.encode() not in present]
    if missing:
        write_atomic(path, b"\n".join([*present, *missing, b""]))


def append_log(tree: Path, lines: str) -> None:
    """Add to MERGE_LOG.txt."""
    with rejecting_os_errors("writing the log"), (tree / LOG).open("a", encoding="utf-8") as log:
        log.write(lines)
