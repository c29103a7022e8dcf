"""Runs git without the caller's environment, hooks or signing, and writes commits straight into the object store."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import Rejected

OLDEST_GIT = (2, 25)
NOBODY = "GH200 rebase <gh200@localhost>"
USERS = "config/"
"""Where users and the web UI keep what they wrote: it stays through a run, or is kept aside."""
NOTES = "refs/notes/gh200"
# fast-import needs a ref to write to; it stays, because a kill while deleting it would leave packed-refs locked.
BUILD_REF = "refs/gh200/build"

# Everything else that starts with GIT_ could point git at another repository, index or configuration.
_KEPT = {
    *(f"GIT_{who}_{what}" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")),
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_SYSTEM",
    "GIT_CONFIG_NOSYSTEM",
    "GIT_EXEC_PATH",
    "GIT_SSH",
    "GIT_SSH_COMMAND",
    "GIT_SSL_CAINFO",
    "GIT_SSL_CAPATH",
}
_SETTINGS = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.quotePath": "false",
    "commit.gpgSign": "false",
    "submodule.recurse": "false",
    # The mirrors in the cache are bare, and ours.
    "safe.bareRepository": "all",
    "i18n.commitEncoding": "UTF-8",
    # The same commit has the same id whatever a user prefers for new repositories.
    "init.defaultObjectFormat": "sha1",
    "init.defaultRefFormat": "files",
    "advice.detachedHead": "false",
    # A background gc would outlive the command and hold its lock.
    "gc.auto": "0",
    "maintenance.auto": "false",
    # ext:: and friends run a command of the address's choosing.
    "protocol.allow": "never",
    **{f"protocol.{name}.allow": "always" for name in ("file", "git", "http", "https", "ssh")},
}
_FREE_SPACE = "free some space on that disk and run the same command again"
_HINTS = {
    "No space left on device": _FREE_SPACE,
    "Out of diskspace": _FREE_SPACE,
    "dubious ownership": "make the directory yours, or follow git's own advice about safe.directory",
    ".lock': File exists": "another git command is at work there; if none is, remove the .lock file",
    "Permission denied": "check who owns the directory, or choose another one",
    "Could not resolve host": "connect to the network, or use a release that is already in the cache",
}


def git(
    where: Path,
    *args: str,
    stdin: bytes | None = None,
    ok: tuple[int, ...] = (0,),
    env: Mapping[str, str] | None = None,
) -> bytes:
    """Run git inside `where` and return what it prints; an exit code not in `ok` is a Rejected with git's own words."""
    try:
        # close_fds=False: only the workspace lock is inheritable, and it must live as long as this child.
        done = subprocess.run(
            command(where, *args),
            input=stdin,
            stdin=None if stdin is not None else subprocess.DEVNULL,
            capture_output=True,
            close_fds=False,
            env=environment(where, env),
        )
    except FileNotFoundError as error:
        raise Rejected(
            "git was not found", why="no program called git on PATH", fix="install git, e.g. `apt install git`"
        ) from error
    if done.returncode not in ok:
        said = done.stderr.decode(errors="replace").strip()
        fix = next((text for needle, text in _HINTS.items() if needle in said), "see git's message above")
        raise Rejected(f"git {args[0]} failed", where=str(where), why=said or f"exit code {done.returncode}", fix=fix)
    return done.stdout


def command(where: Path, *args: str) -> list[str]:
    """The arguments of a git that obeys only us."""
    return [
        "git",
        "-C",
        str(where),
        *(word for key, value in _SETTINGS.items() for word in ("-c", f"{key}={value}")),
        *args,
    ]


def environment(where: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The caller's environment without variables that redirect git."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("GIT_") or k in _KEPT}
    # Without the ceiling a broken .git would make git take the repository around it.
    fixed = {
        "GIT_CEILING_DIRECTORIES": str(where.parent),
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "LC_ALL": "C",
    }
    return {**kept, **fixed, **(more or {})}


def text(where: Path, *args: str, ok: tuple[int, ...] = (0,)) -> str:
    """A git command's output as text."""
    return git(where, *args, ok=ok).decode(errors="surrogateescape").strip()


def require_git() -> None:
    """Reject when git is missing or too old."""
    words = text(Path.cwd(), "version").split()
    numbers = tuple(int(part) for part in words[2].split(".")[:2])
    if numbers < OLDEST_GIT:
        raise Rejected(f"git {words[2]} is too old", fix="install git {}.{} or newer".format(*OLDEST_GIT))


def git_path(repo: Path, name: str) -> Path:
    """A file inside the repository's own directory, also in a linked worktree."""
    return repo / text(repo, "rev-parse", "--git-path", name)


def tip(repo: Path, ref: str) -> str | None:
    """The commit of a ref, or None."""
    return (
        text(repo, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}", ok=(0, 1, 128)) or None
    )


def checked_out(repo: Path) -> str | None:
    """The full name of the branch HEAD is on, None when detached."""
    return text(repo, "symbolic-ref", "--quiet", "HEAD", ok=(0, 1)) or None


def changes(repo: Path) -> list[str]:
    """Lines of `git status`: tracked changes, and files that are neither tracked nor ignored nor a user's configs."""
    out = git(repo, "status", "--porcelain", "-z", "--no-renames", "--untracked-files=all", "--ignore-submodules=none")
    lines = [os.fsdecode(line) for line in out.split(b"\0") if line]
    return [line for line in lines if not line.startswith(f"?? {USERS}")]


def tracked(repo: Path, below: str) -> set[str]:
    """Files git knows below a directory, staged ones too."""
    return {os.fsdecode(name) for name in git(repo, "ls-files", "-z", "--cached", "--", below).split(b"\0") if name}


def tree_paths(repo: Path, commit: str) -> set[str]:
    """Paths of all files of a commit."""
    out = git(repo, "ls-tree", "-r", "-z", "--name-only", commit)
    return {os.fsdecode(name) for name in out.split(b"\0") if name}


def trailer(repo: Path, commit: str, key: str) -> str:
    """A commit's trailer."""
    return text(repo, "log", "-1", f"--format=%(trailers:key={key},valueonly,separator=%x20)", commit, "--")


def last_with_trailer(repo: Path, ref: str, key: str) -> str | None:
    """The last commit that has this trailer."""
    return text(repo, "log", "-1", "--format=%H", f"--grep=^{key}: ", ref, "--") or None


def update_refs(repo: Path, refs: Mapping[str, str]) -> None:
    """Set several refs in one transaction."""
    git(repo, "update-ref", "--stdin", stdin="".join(f"update {name} {sha}\n" for name, sha in refs.items()).encode())


def note(repo: Path, commit: str, said: str) -> None:
    """Who made a commit, and when: beside it, because its id must not depend on either."""
    ident = text(repo, "-c", "user.useConfigOnly=true", "var", "GIT_COMMITTER_IDENT", ok=(0, 128))
    who = ident.rsplit(" ", 2)[0] if ident else NOBODY
    name, _, mail = who.rpartition(" <")
    people = {
        f"GIT_{role}_{what}": value
        for role in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", name), ("EMAIL", mail.rstrip(">")))
    }
    git(repo, "notes", "--ref", NOTES, "add", "--force", "-m", f"Built by {who} {said}", commit, env=people)


@dataclass(frozen=True)
class File:
    """One file of a commit; mode as git writes it (100644, 100755, 120000)."""

    path: str
    mode: str
    data: bytes


@dataclass(frozen=True)
class Commit:
    """A message and the files it changes."""

    message: str
    files: Iterable[File]
    replaces_all: bool = False


def write_commits(repo: Path, commits: Iterable[Commit], parent: str | None, seconds: int) -> str:
    """Write a chain of commits with exactly these bytes and this date, no index or file touched; returns the tip."""
    git_path(repo, f"{BUILD_REF}.lock").unlink(missing_ok=True)
    packs = git_path(repo, "objects/pack")
    before = set(packs.glob("tmp_*"))
    try:
        git(repo, "fast-import", "--quiet", "--force", "--done", stdin=_stream(commits, parent, seconds))
    except BaseException:
        for leftover in {*packs.glob("tmp_*"), *git_path(repo, ".").glob("fast_import_crash_*")} - before:
            leftover.unlink(missing_ok=True)
        raise
    return text(repo, "rev-parse", "--verify", BUILD_REF)


def _stream(commits: Iterable[Commit], parent: str | None, seconds: int) -> bytes:
    signature = f"author {NOBODY} {seconds} +0000\ncommitter {NOBODY} {seconds} +0000\n"
    out: list[bytes] = []
    for commit in commits:
        out += [f"commit {BUILD_REF}\n{signature}".encode(), _data(commit.message.encode())]
        if parent:
            out.append(f"from {parent}\n".encode())
            parent = None
        if commit.replaces_all:
            out.append(b"deleteall\n")
        for file in commit.files:
            out += [f"M {file.mode} inline ".encode(), _quoted(file.path), b"\n", _data(file.data)]
    return b"".join([*out, b"done\n"])


def _data(data: bytes) -> bytes:
    return b"data %d\n%b\n" % (len(data), data)


def _quoted(path: str) -> bytes:
    raw = os.fsencode(path)
    for plain, escaped in ((b"\\", b"\\\\"), (b'"', b'\\"'), (b"\n", b"\\n")):
        raw = raw.replace(plain, escaped)
    return b'"' + raw + b'"'
