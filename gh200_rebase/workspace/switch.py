"""Writes the fork as git history, pristine upstream first and one commit per step, and switches a tree to it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from ..errors import Rejected
from ..system.durable import lock, rejecting_os_errors, remove_tree, write_atomic
from ..system.gitrepo import (
    NOBODY,
    Commit,
    File,
    checked_out,
    git,
    git_path,
    last_with_trailer,
    note,
    text,
    tip,
    trailer,
    tree_paths,
    update_refs,
    write_commits,
)
from ..upstream import pristine
from ..upstream.archive import name_problem
from ..upstream.fetch import Upstream
from . import journal
from .journal import CHECKLIST, FORK_BRANCH, LOG, PATCH, RUN_FILES, SCRIPT, UPSTREAM_BRANCH, Run, step
from .preflight import preflight, reject_full_disk, reject_overwrites
from .rollback import SCRIPT_SOURCE, carry_out, carry_out_or_undo

_PATIENCE = 600
_PRISTINE, _BASE = "Gh200-Pristine", "Gh200-Base"
# Wins over any .gitattributes of upstream: without it a checkout may rewrite line endings, $Id$ or encodings.
EXACT = "* -text -filter -ident -working-tree-encoding\n"
# What operators put into the directory they start from, and what runs leave there; such a tree is still clean.
_LEFTOVERS = (
    "/config/your_*",
    "/datasets/",
    "/debug.log",
    "/cache/",
    "/output/",
    "/jobs/",
    "/baseline/",
    "/gh200_diagnostic_report.json",
)
_EXCLUDED = (
    *(f"/{name}" for name in RUN_FILES),
    *_LEFTOVERS,
    "__pycache__/",
    "*.py[co]",
    ".pytest_cache/",
    "/build/",
    "/.venv/",
)


@dataclass(frozen=True)
class Step:
    """One commit of the fork: `files` maps a path to its full bytes and whether it is executable."""

    subject: str
    body: str
    trailers: Mapping[str, str]
    files: Mapping[str, tuple[bytes, bool]]


@dataclass(frozen=True)
class Built:
    """`already`: the tree was there before, nothing changed, and there is no backup branch of this run."""

    already: bool
    backup: str
    pristine: str
    commits: tuple[str, ...]

    @property
    def tip(self) -> str:
        return self.commits[-1] if self.commits else self.pristine


type Page = Callable[[Built], str]


def _no_page(built: Built) -> str:
    return ""


def build(into: Path, upstream: Upstream, steps: Sequence[Step], checklist: Page = _no_page) -> Built:
    """Make `into` the fork: a new directory appears in one step, a checkout is switched under a journal."""
    into = into.resolve()
    preflight(into)
    _reject_overlap(into, upstream.root)
    _reject_bad_paths(steps)
    with rejecting_os_errors(f"writing {into}"):
        return (_in_place if (into / ".git").exists() else _fresh)(into, upstream, steps, checklist)


def _reject_overlap(into: Path, root: Path) -> None:
    if into.is_relative_to(root):
        raise Rejected(
            "The fork would be written into its own upstream directory",
            where=f"{into}\n{root}",
            fix="name another --into, or for a git checkout use --upstream git:DIR@REF",
        )


def _reject_bad_paths(steps: Sequence[Step]) -> None:
    bad = [f"{path}: it {why}" for one in steps for path in one.files if (why := name_problem(path))]
    if bad:
        raise Rejected("A patch writes to a path that is not safe", why="\n".join(bad), fix="correct the patch")


def _fresh(into: Path, upstream: Upstream, steps: Sequence[Step], checklist: Page) -> Built:
    into.parent.mkdir(parents=True, exist_ok=True)
    place = into.with_name(f".{into.name}.gh200-new")
    with lock(into.parent, f"making a directory in {into.parent}", patience=_PATIENCE):
        preflight(into)
        if (into / ".git").exists():
            # Another run has made it while this one waited.
            return _in_place(into, upstream, steps, checklist)
        remove_tree(place)
        try:
            place.mkdir()
            git(place, "init", "--quiet", "--template=")
            git(place, "symbolic-ref", "HEAD", f"refs/heads/{UPSTREAM_BRANCH}")
            git(place, "config", "core.autocrlf", "false")
            write_atomic(git_path(place, "info/attributes"), EXACT.encode())
            first = _import_pristine(place, upstream)
            update_refs(place, {f"refs/heads/{UPSTREAM_BRANCH}": first})
            step("pristine")
            built, run = _plan(place, upstream, steps, first, checklist)
            carry_out(place, run)
            os.rename(place, into)
            step("renamed")
        finally:
            remove_tree(place)
    return built


def _in_place(into: Path, upstream: Upstream, steps: Sequence[Step], checklist: Page) -> Built:
    with lock(into, "changing this tree", patience=_PATIENCE):
        preflight(into)
        built, run = _plan(into, upstream, steps, _pristine(into, upstream), checklist)
        if not built.already and (kept := carry_out_or_undo(into, run)):
            print(kept)
    return built


def _plan(repo: Path, upstream: Upstream, steps: Sequence[Step], first: str, checklist: Page) -> tuple[Built, Run]:
    """Write the commits, and unless they are what is checked out already, everything a run needs before it starts."""
    commits = _write_steps(repo, steps, first)
    step("commits")
    head, branch = text(repo, "rev-parse", "HEAD"), checked_out(repo)
    fork, old = (tip(repo, f"refs/heads/{name}") for name in (FORK_BRANCH, UPSTREAM_BRANCH))
    already = branch == f"refs/heads/{FORK_BRANCH}" and fork == [first, *commits][-1]
    built = Built(already, "" if already else _free_name(repo), first, commits)
    new = first if trailer(repo, first, _PRISTINE) and (not old or trailer(repo, old, _PRISTINE)) else old
    run = Run(built.backup, branch, head, fork, built.tip, old, new)
    if already:
        return built, run
    reject_overwrites(repo, head, built.tip)
    reject_full_disk(repo, built.tip)
    _prepare(repo, run, upstream, commits, checklist(built))
    note(repo, built.tip, f"on {datetime.now().astimezone():%Y-%m-%d %H:%M:%S %z}")
    step("prepared")
    journal.write(repo, run)
    step("journal")
    return built, run


def _pristine(repo: Path, upstream: Upstream) -> str:
    """The commit the steps stand on, in a repository that has history."""
    old = tip(repo, f"refs/heads/{UPSTREAM_BRANCH}")
    previous = old if old and trailer(repo, old, _PRISTINE) else last_with_trailer(repo, "HEAD", _PRISTINE)
    commit = upstream.git_commit if upstream.spec.kind == "git" else None
    if commit and (tip(repo, commit) or not previous):
        if not tip(repo, commit):
            git(repo, "fetch", "--quiet", "--no-tags", "--end-of-options", str(upstream.mirror), commit)
        return commit
    # One of an older revision of this tool has its builder's name and a past, and so another id.
    signed = text(repo, "show", "--no-patch", "--format=%an <%ae>%P", previous) if previous else ""
    if previous and signed == NOBODY and trailer(repo, previous, _PRISTINE) == upstream.digest:
        return previous
    return _import_pristine(repo, upstream)


def _import_pristine(repo: Path, upstream: Upstream) -> str:
    """A commit without a past: its id says which upstream it is, not what stood in this directory before."""
    trailers = {"Gh200-Upstream": upstream.label.replace(":", " ", 1), _PRISTINE: upstream.digest}
    message = _message(f"Upstream SimpleTuner {upstream.version}, untouched", "", trailers)
    files = pristine.files(upstream.root)
    return write_commits(repo, [Commit(message, files, replaces_all=True)], None, upstream.seconds)


def _write_steps(repo: Path, steps: Sequence[Step], first: str) -> tuple[str, ...]:
    """The date is the pristine commit's own, so the same input gives the same commits on any day."""
    seconds = int(text(repo, "show", "--no-patch", "--format=%ct", first))
    commits = [
        Commit(
            _message(one.subject, one.body, {**one.trailers, _BASE: first}),
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


def _free_name(repo: Path) -> str:
    moment = datetime.now().replace(microsecond=0)
    while journal.store(repo, name := f"gh200-backup-{moment:%Y%m%d_%H%M%S}").exists() or tip(
        repo, f"refs/heads/{name}"
    ):
        moment += timedelta(seconds=1)
    return name


def _prepare(repo: Path, run: Run, upstream: Upstream, commits: tuple[str, ...], page: str) -> None:
    """Lay everything ready inside .git: the files to install, and copies of those of an earlier run."""
    place = journal.store(repo, run.backup)
    (place / "kept").mkdir(parents=True)
    for name in set(RUN_FILES) - tree_paths(repo, run.before):
        if (repo / name).is_file():
            shutil.copy2(repo / name, place / "kept" / name)
    listed = "".join(f"  {text(repo, 'show', '--no-patch', '--format=%H %s', commit)}\n" for commit in commits)
    log = (
        f"GH200 rebase of {datetime.now().astimezone():%Y-%m-%d %H:%M:%S %z}\n{run.lines()}"
        f"Upstream: {upstream.label}, version {upstream.version}, sha256 {upstream.digest}\nCommits:\n{listed}"
    )
    write_atomic(place / "new" / LOG, log.encode())
    write_atomic(place / "new" / SCRIPT, SCRIPT_SOURCE.read_bytes(), 0o755)
    write_atomic(place / "new" / PATCH, _current_patch(repo, run, upstream))
    write_atomic(place / "new" / CHECKLIST, page.encode())
    write_atomic(place / "run.txt", run.lines().encode())
    _exclude(repo, run)


def _current_patch(repo: Path, run: Run, upstream: Upstream) -> bytes:
    """The fork's own changes as they stood before the run, against the upstream they stood on."""
    marked = last_with_trailer(repo, run.before, _BASE)
    other = upstream.git_commit if upstream.git_commit and tip(repo, upstream.git_commit) else tip(repo, "@{upstream}")
    merged = text(repo, "merge-base", run.before, other, ok=(0, 1)) if other else ""
    base = (tip(repo, trailer(repo, marked, _BASE)) if marked else None) or merged
    if not base and not trailer(repo, run.before, _PRISTINE):
        return f"# No upstream base is known for {run.before}, so there is no difference to show.\n".encode()
    options = (
        "--binary",
        "--full-index",
        "--no-color",
        "--no-ext-diff",
        "--no-textconv",
        "--no-renames",
        "--src-prefix=a/",
        "--dst-prefix=b/",
    )
    diff = git(repo, "diff", *options, base, run.before) if base else b""
    return diff or b"# The tree had no changes of the fork's own before this run.\n"


def _exclude(repo: Path, run: Run) -> None:
    """Keep the run's files out of `git status`, and what the old .gitignore hid when the new tree has none."""
    path = git_path(repo, "info/exclude")
    present = path.read_bytes().splitlines() if path.exists() else []
    wanted = [line.encode() for line in _EXCLUDED]
    if ".gitignore" in tree_paths(repo, run.before) - tree_paths(repo, run.fork_after):
        wanted += git(repo, "cat-file", "blob", f"{run.before}:.gitignore").splitlines()
    missing = [line for line in wanted if line not in present]
    if missing:
        write_atomic(path, b"\n".join([*present, *missing, b""]))
