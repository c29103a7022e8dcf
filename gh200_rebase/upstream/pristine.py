"""What an upstream directory holds: its files as git would store them, a digest over them, and its version."""

from __future__ import annotations

import ast
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ..errors import Rejected
from ..system.gitrepo import File, git

MARK = "simpletuner/helpers/training/trainer.py"
_SKIPPED = {".git", "__pycache__"}


def files(root: Path) -> Iterator[File]:
    """Every file with its exact bytes, by path; in a git checkout, ignored files are not upstream's."""
    for name in sorted(_listed(root) if (root / ".git").exists() else _walked(root)):
        path = root / name
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            yield File(name, "120000", os.fsencode(os.readlink(path)))
        elif stat.S_ISREG(mode):
            yield File(name, "100755" if mode & 0o100 else "100644", path.read_bytes())
        elif not stat.S_ISDIR(mode):
            raise Rejected(
                "Upstream holds something that is neither a file nor a link",
                where=str(path),
                fix="remove it from the directory",
            )


def _listed(root: Path) -> set[str]:
    out = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = {os.fsdecode(name) for name in out.split(b"\0") if name}
    return {name for name in names if os.path.lexists(root / name)}


def _walked(root: Path) -> set[str]:
    names = set()
    for directory, subfolders, plain in root.walk():
        links = [name for name in subfolders if (directory / name).is_symlink()]
        subfolders[:] = [name for name in subfolders if name not in _SKIPPED]
        names |= {(directory / name).relative_to(root).as_posix() for name in (*plain, *links)}
    return names


def digest(root: Path) -> str:
    """One sha256 over path, mode and bytes of every file."""
    whole = hashlib.sha256()
    for file in files(root):
        whole.update(f"{file.mode} {hashlib.sha256(file.data).hexdigest()} ".encode() + os.fsencode(file.path) + b"\0")
    return whole.hexdigest()


def newest(root: Path) -> int:
    """The date of the youngest file, which in an unpacked archive is the archive's own."""
    return int(max((root / file.path).lstat().st_mtime for file in files(root)))


def version(root: Path) -> str:
    """`__version__`, read without running it; rejects a directory that is not SimpleTuner."""
    init = root / "simpletuner" / "__init__.py"
    found = _version_in(init) if (root / MARK).is_file() and init.is_file() else None
    if found is None:
        raise Rejected(
            "This is not a SimpleTuner tree",
            where=str(root),
            why=f'it needs {MARK} and a plain `__version__ = "..."` in simpletuner/__init__.py',
            fix="name the directory, ref or release that holds SimpleTuner itself",
        )
    return found


def _version_in(init: Path) -> str | None:
    try:
        module = ast.parse(init.read_bytes())
    except (SyntaxError, ValueError):
        return None
    for node in module.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            named = any(isinstance(target, ast.Name) and target.id == "__version__" for target in targets)
            if named and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                return node.value.value
    return None
