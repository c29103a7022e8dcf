"""What earlier runs left: results of upstream's tests, and the copies of the trees they ran in."""

from __future__ import annotations

import fcntl
import hashlib
import json
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

from ..place import ROOT
from .upstream_trees import Trees, digest, file_digest


class Cache:
    """Results by what they depend on: the tree, the test file, the installed packages. Safe to delete."""

    def __init__(self, directory: Path, trees: Trees, since: float) -> None:
        self.directory, self.trees, self.since = directory, trees, since
        self.digests = {name: digest(tree, trees.pristine) for name, tree in trees.items()}
        self.environment = _environment_digest()
        directory.mkdir(parents=True, exist_ok=True)

    def _path(self, tree: str, file: str) -> Path:
        depends = (self.digests[tree], file, file_digest(self.trees.pristine / file), self.environment)
        return self.directory / f"{hashlib.sha256('\0'.join(depends).encode()).hexdigest()[:32]}.json"

    def load(self, tree: str, file: str) -> dict[str, str] | None:
        """Stored results of a test file."""
        path = self._path(tree, file)
        try:
            return dict(json.loads(path.read_text(encoding="utf-8"))) if path.stat().st_mtime >= self.since else None
        except (FileNotFoundError, ValueError):
            return None

    def save(self, tree: str, file: str, tests: dict[str, str]) -> None:
        """Store them."""
        path = self._path(tree, file)
        half = path.with_suffix(f".{threading.get_ident()}")
        half.write_text(json.dumps(tests), encoding="utf-8")
        half.replace(path)


def _environment_digest() -> str:
    """The environment's own stamp where set-up left one; it names the lock, the Python and whose torch it is."""
    for path in (Path(sys.prefix) / ".gh200-stamp", ROOT / "requirements" / "fork.lock"):
        if path.is_file():
            return file_digest(path)
    return sys.version


def claim_numbers(directory: Path, count: int, locks: ExitStack) -> list[int]:
    """Numbers of copies that no other run of this script is at work in; they are locked until `locks` closes."""
    numbers: list[int] = []
    number = 0
    while len(numbers) < count:
        lock = locks.enter_context((directory / f"copy-{number}.lock").open("w"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            numbers.append(number)
        except BlockingIOError:
            pass
        number += 1
    return numbers
