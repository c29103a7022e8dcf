"""Upstream's git history, read straight from its object store: nothing is checked out, nothing is written."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import IO

from ..errors import Refused
from ..system.gitrepo import command, environment, text, tip

_FIELDS = ("%H", "%P", "%an", "%as", "%s")
_PLAIN = {"blob", "tree"}
_NOT_BLOBS = {b"40000": "tree", b"160000": "commit"}


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
    """A repository's objects by name, through one git process that stays until the end."""

    def __init__(self, repo: Path) -> None:
        self.repo = repo
        self._read = self._start("--batch")
        self._folders: dict[str, dict[str, tuple[str, str]]] = {}

    def __enter__(self) -> Objects:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        for pipe in (self._read.stdin, self._read.stdout):
            if pipe:
                pipe.close()
        self._read.wait()

    def _start(self, mode: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command(self.repo, "cat-file", mode),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(self.repo),
        )

    def data(self, name: str) -> bytes:
        return self._object(name)[1]

    def folder(self, name: str) -> dict[str, tuple[str, str]]:
        """What a folder holds, by name: id and type. One that many commits share is read once."""
        if name not in self._folders:
            found, data = self._object(name)
            self._folders[name] = _entries(data, len(found) // 2)
        return self._folders[name]

    def _object(self, name: str) -> tuple[str, bytes]:
        words = self._ask(self._read, name).decode().split(" ")
        if len(words) != 3:
            raise Refused(
                f"git has no object {name}",
                where=str(self.repo),
                why="a clone that was made with --filter or --depth lacks a part of the history",
                fix="use a whole clone, or a bare mirror",
            )
        pipe = self._pipe(self._read.stdout)
        data = pipe.read(int(words[2]))
        pipe.read(1)
        return words[0], data

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


def _entries(data: bytes, width: int) -> dict[str, tuple[str, str]]:
    """A tree object taken apart: mode, name, and an id of so many bytes, again and again."""
    found, at = {}, 0
    while at < len(data):
        space, end = data.index(b" ", at), data.index(b"\0", at)
        kind, name = _NOT_BLOBS.get(data[at:space], "blob"), data[space + 1 : end].decode("utf-8", "surrogateescape")
        at = end + 1 + width
        found[name] = data[end + 1 : at].hex(), kind
    return found


class CommitTree:
    """The files of one commit, as a Tree; `mark` says what a path is without reading it."""

    def __init__(self, objects: Objects, commit: str) -> None:
        self.objects, self.commit = objects, commit
        self._kinds: dict[str, tuple[str, str]] = {}

    @cached_property
    def _names(self) -> str:
        return hashlib.sha256("\0".join(self.paths()).encode("utf-8", "surrogateescape")).hexdigest()

    def mark(self, path: str) -> str:
        """Equal for equal answers: a blob's id; of a folder only that it is one; of "", the names of all files."""
        if not path:
            return self._names
        found, kind = self._kind(path)
        return found if kind == "blob" else kind

    def read(self, path: str) -> bytes | None:
        found, kind = self._kind(path)
        return self.objects.data(found) if kind == "blob" else None

    def has_folder(self, path: str) -> bool:
        return self._kind(path)[1] == "tree"

    def paths(self) -> list[str]:
        return sorted(self._below(self._root, ""))

    def _below(self, tree: str, above: str) -> Iterator[str]:
        for name, (found, kind) in self.objects.folder(tree).items():
            if kind == "tree":
                yield from self._below(found, f"{above}{name}/")
            else:
                yield above + name

    @property
    def _root(self) -> str:
        return f"{self.commit}^{{tree}}"

    def _kind(self, path: str) -> tuple[str, str]:
        if path not in self._kinds:
            self._kinds[path] = self._found(path)
        return self._kinds[path]

    def _found(self, path: str) -> tuple[str, str]:
        """(id, type) of a path; empty when there is nothing that could be read."""
        found, kind = self._root, "tree" if path else ""
        for name in path.split("/"):
            if kind != "tree":
                return "", ""
            found, kind = self.objects.folder(found).get(name, ("", ""))
        return (found, kind) if kind in _PLAIN else ("", "")
