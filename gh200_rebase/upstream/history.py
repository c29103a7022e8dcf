"""Upstream's git history, read straight from its object store: nothing is checked out, nothing is written."""

from __future__ import annotations

import hashlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

from ..errors import Refused
from ..system.gitrepo import command, environment, text, tip

_FIELDS = ("%H", "%P", "%an", "%as", "%s")
_PLAIN = {"blob", "tree"}


@dataclass(frozen=True)
class Change:
    """One commit; `parent` is its first one."""

    id: str
    parent: str
    author: str
    date: str
    subject: str

    def __str__(self) -> str:
        return f"{self.id[:12]} {self.date} {self.author}: {self.subject}"


def changes(repo: Path, first: str, last: str, first_parent: bool) -> list[Change]:
    """`first` itself and all commits from it to `last`, oldest first."""
    start, end = (_commit(repo, name) for name in (first, last))
    if not _is_ancestor(repo, start, end):
        raise Refused(
            f"{last} does not come after {first}",
            where=str(repo),
            fix="name a commit of its past with --from, or a later one with --to",
        )
    options = ["--topo-order", "--reverse", f"--format={'%x1f'.join(_FIELDS)}", *(["--first-parent"] * first_parent)]
    listed = text(repo, "log", "-1", options[2], start) + "\n" + text(repo, "log", *options, f"{start}..{end}", "--")
    found = []
    for line in listed.split("\n"):
        if line:
            commit, parents, author, date, subject = line.split("\x1f", 4)
            found.append(Change(commit, parents.split(" ")[0], author, date, subject))
    return found


def repository(place: str) -> Path:
    """A clone or a bare mirror on this machine."""
    path = Path(place).expanduser().resolve()
    if not path.is_dir() or not text(path, "rev-parse", "--git-dir", ok=(0, 128)):
        raise Refused(
            f"There is no git repository at {place}",
            fix="clone upstream (`git clone --bare URL`) and name the folder",
        )
    return path


def _commit(repo: Path, name: str) -> str:
    for ref in (name, f"v{name}", f"refs/remotes/origin/{name}"):
        found = None if name.startswith("-") else tip(repo, ref)
        if found:
            return found
    near = ", ".join(text(repo, "tag", "--sort=creatordate").split()[-5:])
    raise Refused(
        f"There is no commit {name!r} in that repository",
        where=str(repo),
        why=f"its newest tags are {near or 'none'}",
        fix="name a tag, a branch or a commit id with --from or --to; `git fetch --tags` brings tags",
    )


def _is_ancestor(repo: Path, one: str, other: str) -> bool:
    return text(repo, "merge-base", one, other, ok=(0, 1)) == one


class Objects:
    """A repository's objects by name, through two git processes that stay until the end."""

    def __init__(self, repo: Path) -> None:
        self.repo = repo
        self._check = self._start("--batch-check")
        self._read = self._start("--batch")

    def __enter__(self) -> Objects:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        for process in (self._check, self._read):
            for pipe in (process.stdin, process.stdout):
                if pipe:
                    pipe.close()
            process.wait()

    def _start(self, mode: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command(self.repo, "cat-file", mode),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(self.repo),
        )

    def kind(self, name: str) -> tuple[str, str]:
        """(id, type) of what a name such as COMMIT:PATH means; empty when there is none."""
        words = self._ask(self._check, name).split(b" ")
        known = len(words) == 3 and words[1].decode() in _PLAIN
        return (words[0].decode(), words[1].decode()) if known else ("", "")

    def data(self, blob: str) -> bytes:
        size = int(self._ask(self._read, blob).split(b" ")[2])
        pipe = self._pipe(self._read.stdout)
        found = pipe.read(size)
        pipe.read(1)
        return found

    def _ask(self, process: subprocess.Popen[bytes], name: str) -> bytes:
        try:
            asked = self._pipe(process.stdin)
            asked.write(os.fsencode(name) + b"\n")
            asked.flush()
            answer = self._pipe(process.stdout).readline()
        except BrokenPipeError:
            answer = b""
        if not answer.endswith(b"\n"):
            raise Refused(
                "git stopped answering",
                where=str(self.repo),
                fix="check the repository with `git fsck`, then try again",
            )
        return answer.rstrip(b"\n")

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
        assert pipe is not None
        return pipe


class CommitTree:
    """The files of one commit, as a Tree; `mark` says what a path is without reading it."""

    def __init__(self, objects: Objects, commit: str) -> None:
        self.objects, self.commit = objects, commit
        self._kinds: dict[str, tuple[str, str]] = {}

    def mark(self, path: str) -> str:
        """Equal for equal answers: a blob's id; of a folder only that it is one; of "", the names of all files."""
        if not path:
            return hashlib.sha256("\0".join(self.paths()).encode("utf-8", "surrogateescape")).hexdigest()
        found, kind = self._kind(path)
        return found if kind == "blob" else kind

    def read(self, path: str) -> bytes | None:
        found, kind = self._kind(path)
        return self.objects.data(found) if kind == "blob" else None

    def has_folder(self, path: str) -> bool:
        return self._kind(path)[1] == "tree"

    def paths(self) -> list[str]:
        listed = text(self.objects.repo, "ls-tree", "-r", "-z", "--name-only", self.commit)
        return sorted(name for name in listed.split("\0") if name)

    def _kind(self, path: str) -> tuple[str, str]:
        if path not in self._kinds:
            plain = path and "\n" not in path
            self._kinds[path] = self.objects.kind(f"{self.commit}:{path}") if plain else ("", "")
        return self._kinds[path]
