"""The repository (or fork tree) this tool runs from: its patches, its overlay files, its build directory."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path

from .errors import Rejected
from .patches import lockfile
from .patches.patchfile import FileCopy, Patch, load_patches
from .syntax.tree import MemoryTree
from .system import gitrepo

_NEVER_COPIED = ("__pycache__", ".pytest_cache")

Payload = dict[str, tuple[bytes, bool]]
"""Target path -> (content, executable)."""


@dataclass(frozen=True)
class Project:
    """One checkout of this repository, or of a fork."""

    root: Path

    @cached_property
    def patches(self) -> tuple[Patch, ...]:
        """All patches in commit order."""
        return load_patches(self.root / "patches")

    @property
    def lock_path(self) -> Path:
        """The path of the lock."""
        return self.root / "patches" / "lock.json"

    @cached_property
    def lock(self) -> lockfile.Lock:
        """The lock as it is on disk."""
        return lockfile.load(self.lock_path)

    @property
    def build(self) -> Path:
        """The directory of everything generated."""
        return self.root / "build"

    @property
    def fork(self) -> Path:
        """The link to the current build of the fork."""
        return self.build / "fork"

    @property
    def cache(self) -> Path:
        """Downloaded upstreams; a fork in X/build/forks shares those of X."""
        builds = self.root.parent
        owned = builds.parts[-2:] == ("build", "forks") and (builds.parent.parent / "gh200_rebase").is_dir()
        return (builds.parent if owned else self.build) / "upstream"

    @cached_property
    def payloads(self) -> dict[int, Payload]:
        """Per patch number, the whole files it brings."""
        return {patch.number: _collect(self.root, patch) for patch in self.patches}

    @cached_property
    def overlay(self) -> MemoryTree:
        """The Python files the fork adds, as the fork will hold them."""
        return MemoryTree({path: data for files in self.payloads.values() for path, (data, _) in files.items()})

    @cached_property
    def digest(self) -> str:
        """Changes whenever the tool, a patch or an overlay file that decides about edits changes."""
        return self._digest("simpletuner/")

    @cached_property
    def full_digest(self) -> str:
        """Changes whenever anything of a fork that is built from here changes."""
        return self._digest("")

    def _digest(self, below: str) -> str:
        state = hashlib.sha256()
        decisive = [*(self.root / "gh200_rebase").rglob("*.py"), *(patch.path for patch in self.patches)]
        for path in sorted(decisive):
            # With its directory: two modules of one name in two packages must not be confused.
            state.update(path.relative_to(self.root).as_posix().encode() + b"\0" + path.read_bytes())
        for files in self.payloads.values():
            for target, (data, executable) in files.items():
                if target.startswith(below):
                    state.update(f"{target}\0{executable}\0".encode() + data)
        return state.hexdigest()


def _collect(root: Path, patch: Patch) -> Payload:
    payload: Payload = {}
    for copy in patch.files:
        source = root / copy.source
        if not source.exists():
            raise Rejected(
                "A file that a patch copies does not exist",
                where=f"{patch.path.name}: files.from = {copy.source!r}",
                fix="restore it, or take the entry out of the patch",
            )
        committed = gitrepo.tracked(root, copy.source) if copy.committed and (root / ".git").exists() else None
        for path in [source] if source.is_file() else sorted(source.rglob("*")):
            if committed is not None and path.relative_to(root).as_posix() not in committed:
                continue
            relative = path.relative_to(source).as_posix()
            if path.is_file() and not _skipped(relative, copy):
                target = copy.target if source.is_file() else f"{copy.target}/{relative}"
                payload[target] = (path.read_bytes(), bool(path.stat().st_mode & 0o100))
    return payload


def _skipped(relative: str, copy: FileCopy) -> bool:
    parts = relative.split("/")
    hidden_by_rule = any(fnmatch(relative, pattern) for pattern in copy.exclude)
    return hidden_by_rule or relative.endswith(".pyc") or any(part in _NEVER_COPIED for part in parts)
