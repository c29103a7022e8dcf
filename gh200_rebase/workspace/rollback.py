"""Carries out a journalled run on a git tree, finishes an interrupted one, and takes the last one back."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from ..errors import Rejected
from ..system.durable import lock, rejecting_os_errors
from ..system.gitrepo import environment, git, git_path, require_git, update_refs
from . import journal
from .journal import FORK_BRANCH, RUN_FILES, UPSTREAM_BRANCH, Run, step

SCRIPT_SOURCE = Path(__file__).with_name("rollback.sh")
UNFINISHED_FIX = "finish it with --resume, or take it back with --rollback"


def carry_out(repo: Path, run: Run) -> None:
    """Every change of a run, in an order that can be repeated from the start after a kill at any point."""
    heads = {FORK_BRANCH: (run.fork_before, run.fork_after), UPSTREAM_BRANCH: (run.upstream_before, run.upstream_after)}
    # The old tips stay reachable, so that no gc can take what a rollback needs.
    kept = {f"refs/gh200/{run.backup}/{name}": old for name, (old, _) in heads.items() if old}
    update_refs(
        repo, {f"refs/heads/{run.backup}": run.before, f"refs/gh200/{run.backup}/after": run.fork_after, **kept}
    )
    step("refs")
    git(repo, "checkout", "--quiet", "--force", "--detach", run.fork_after)
    step("checkout")
    update_refs(repo, {f"refs/heads/{name}": new for name, (_, new) in heads.items() if new})
    step("branches")
    git(repo, "symbolic-ref", "HEAD", f"refs/heads/{FORK_BRANCH}")
    step("head")
    for name in RUN_FILES:
        shutil.copy(journal.store(repo, run.backup) / "new" / name, repo / name)
        step(f"file-{name}")
    _reject_rewritten(repo, run)
    journal.clear(repo)
    step("done")


def _reject_rewritten(repo: Path, run: Run) -> None:
    """Compare by content: the index alone would trust the dates of the files git has just written."""
    scratch = journal.store(repo, run.backup).absolute() / "index"
    for leftover in (scratch, scratch.with_name("index.lock")):
        leftover.unlink(missing_ok=True)
    index = {"GIT_INDEX_FILE": str(scratch)}
    git(repo, "read-tree", run.fork_after, env=index)
    rewritten = git(repo, "update-index", "--refresh", env=index, ok=(0, 1)).decode(errors="replace").splitlines()
    if rewritten:
        raise Rejected(
            "git rewrites files of this checkout on their way to disk",
            where=str(repo),
            why="\n".join(rewritten[:10]),
            fix="use another directory (--into) or --upstream git:DIR@REF, or turn off the conversion there",
        )


def carry_out_or_undo(repo: Path, run: Run) -> str:
    """As carry_out; a failure or Ctrl-C on the way puts the tree back as it was. Returns what was kept aside."""
    try:
        kept = _run_script(repo, yes=True, option="--set-aside")
        carry_out(repo, run)
        return kept
    except BaseException as error:
        try:
            _run_script(repo, yes=True)
        except Rejected as second:
            raise Rejected(
                "The run stopped half way and could not be taken back at once",
                where=str(repo),
                why=f"{error}\nand then: {second.what}",
                fix=f"free some space on that disk if it is full, then {UNFINISHED_FIX}",
            ) from error
        raise


def resume(into: Path) -> str:
    """Finish what an interrupted run or rollback began; returns a sentence about what was done."""
    repo = _own_repo(into)
    with lock(repo, "changing this tree"), rejecting_os_errors("resuming"):
        found = journal.read(repo)
        if found is None:
            raise Rejected(
                "Nothing to resume", where=str(repo), why="the last run there came to its end", fix="start a new run"
            )
        if found["action"] == "rollback":
            return _run_script(repo, yes=True)
        run = Run(**found)  # type: ignore[arg-type]
        _drop_stale_locks(repo, run)
        kept = carry_out_or_undo(repo, run)
        return (
            f"{kept}\n" * bool(kept) + f"Finished the interrupted run: {repo} is on {FORK_BRANCH} at {run.fork_after}."
        )


def rollback(into: Path, yes: bool) -> str:
    """Take the last run back with the very script that lies in the tree; returns what it said."""
    repo = _own_repo(into)
    with lock(repo, "changing this tree"):
        return _run_script(repo, yes)


def _own_repo(into: Path) -> Path:
    require_git()
    repo = into.resolve()
    if not (repo / ".git").exists():
        raise Rejected(
            f"There is no fork at {into}",
            why="the directory is not a git checkout",
            fix="name the fork's tree with --into DIR",
        )
    return repo


def _run_script(repo: Path, yes: bool, option: str = "--yes") -> str:
    command = ["sh", str(SCRIPT_SOURCE), *([option] if yes else []), str(repo)]
    ask = None if not yes else subprocess.DEVNULL
    # Asking needs the terminal, so then only the rejection is caught.
    done = subprocess.run(
        command,
        stdin=ask,
        stdout=None if not yes else subprocess.PIPE,
        stderr=subprocess.PIPE,
        close_fds=False,
        env=environment(repo),
        text=True,
        errors="replace",
    )
    if done.returncode:
        what, _, fix = done.stderr.strip().partition("\n  fix: ")
        raise Rejected(what or "The rollback was stopped", where=str(repo), fix=fix or UNFINISHED_FIX)
    return (done.stdout or "").strip()


def _drop_stale_locks(repo: Path, run: Run) -> None:
    """A killed git leaves its locks; the run's own lock says that nobody else is at work."""
    refs = (f"refs/heads/{name}" for name in (run.backup, FORK_BRANCH, UPSTREAM_BRANCH))
    found = [git_path(repo, f"{name}.lock") for name in ("index", "HEAD", "packed-refs", *refs)]
    for path in (*found, *git_path(repo, "refs/gh200").rglob("*.lock")):
        path.unlink(missing_ok=True)


def append_log(into: Path, text: str) -> None:
    """Add to MERGE_LOG.txt."""
    with rejecting_os_errors("writing the log"), (into / journal.LOG).open("a", encoding="utf-8") as log:
        log.write(text)
