"""The two trees that are compared: what the patches changed between them, a digest of each, copies to run tests in."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gh200_rebase.patches.patchfile import load_patches

from ..place import BUILD, Place
from ..scenario import Failed

# Not upstream's, or too big to copy, or written by whoever ran something in the tree.
_NOT_COPIED = {".git", ".venv", "build", "debug.log"}
_VERSION = re.compile(r"""^__version__\s*=\s*["']([^"']+)""", re.MULTILINE)


@dataclass(frozen=True)
class Trees:
    """The pristine tree and the fork."""

    pristine: Path
    fork: Path

    def items(self) -> tuple[tuple[str, Path], ...]:
        """Both, with their names."""
        return (("pristine", self.pristine), ("fork", self.fork))


def both_trees(place: Place) -> Trees:
    """A comparison with nothing is no pass, so a missing or different upstream is a failure."""
    if place.pristine is None:
        raise Failed(f"there is no pristine upstream to compare the fork with; {BUILD}, and build/pristine beside it")
    trees = Trees(place.pristine, place.fork)
    versions = {name: _version(tree) for name, tree in trees.items()}
    if len(set(versions.values())) > 1:
        raise Failed(
            f"the pristine upstream is {versions['pristine']}, the fork is made from {versions['fork']}; "
            "build the fork anew, or name the right tree with GH200_PRISTINE"
        )
    return trees


def _version(tree: Path) -> str:
    found = _VERSION.search((tree / "simpletuner" / "__init__.py").read_text(encoding="utf-8"))
    return found[1] if found else "unknown"


def module_name(path: str) -> str:
    """The module of a file."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def modules(tree: Path) -> dict[str, str]:
    """Dotted name -> path of every Python module of the package."""
    paths = (path.relative_to(tree).as_posix() for path in (tree / "simpletuner").rglob("*.py"))
    return {module_name(path): path for path in paths}


def patched_modules(trees: Trees) -> frozenset[str]:
    """Those of upstream whose file differs in the fork: what the patches did here, variants decided."""
    return frozenset(
        name
        for name, path in modules(trees.pristine).items()
        if not (trees.fork / path).is_file() or (trees.fork / path).read_bytes() != (trees.pristine / path).read_bytes()
    )


def overridden_modules(trees: Trees) -> frozenset[str]:
    """Those with a function that the fork's code stands for, as its patches declare: their files need not differ."""
    directory = trees.fork / "patches"
    patches = load_patches(directory) if directory.is_dir() else ()
    edits = {edit.file for patch in patches for edit in patch.edits if edit.stands_for}
    expected = {item.file for patch in patches for item in patch.expects if item.stands_for}
    return frozenset(map(module_name, edits | expected))


def is_test(path: str) -> bool:
    """Whether a path is a test file."""
    name = path.rpartition("/")[2]
    return path.startswith("tests/") and name.startswith("test_") and name.endswith(".py")


def digest(tree: Path, pristine: Path) -> str:
    """Over everything upstream's tests may depend on: what upstream has at the top, as it is in this tree.

    Test files are not in it; each has a digest of its own. They, and what they share, are always the pristine ones.
    """
    whole = hashlib.sha256()
    names = {path.name for path in pristine.iterdir()} - {"tests"}
    files = {relative: path for relative, path in _files(tree).items() if relative.split("/")[0] in names}
    shared = {relative: path for relative, path in _files(pristine).items() if relative.startswith("tests/")}
    files |= {relative: path for relative, path in shared.items() if not is_test(relative)}
    for relative in sorted(files):
        whole.update(f"{relative}\0{file_digest(files[relative])}\0".encode())
    return whole.hexdigest()


def file_digest(path: Path) -> str:
    """A hash of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def mirror(tree: Path, pristine: Path, target: Path) -> None:
    """Make `target` a copy of the tree with the pristine tests; what was compiled in an earlier copy stays."""
    wanted = {name: path for name, path in _files(tree).items() if not name.startswith("tests/")}
    wanted |= {name: path for name, path in _files(pristine).items() if name.startswith("tests/")}
    directories = {parent.as_posix() for name in wanted for parent in Path(name).parents}
    for directory, subfolders, names in target.walk():
        below = directory.relative_to(target)
        for name in set(subfolders) - {"__pycache__"}:
            if (below / name).as_posix() not in directories:
                shutil.rmtree(directory / name)
        subfolders[:] = [name for name in subfolders if (below / name).as_posix() in directories]
        for name in names:
            if (below / name).as_posix() not in wanted:
                (directory / name).unlink()
    for name, source in wanted.items():
        copy = target / name
        if not copy.is_file() or _stamp(copy) != _stamp(source):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy)


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _files(tree: Path) -> dict[str, Path]:
    return {path.relative_to(tree).as_posix(): path for path in _walk(tree)}


def _walk(tree: Path) -> Iterator[Path]:
    for directory, subfolders, names in tree.walk():
        skipped = _NOT_COPIED if directory == tree else set()
        subfolders[:] = [name for name in subfolders if name not in skipped and name != "__pycache__"]
        yield from (directory / name for name in names if name not in skipped and (directory / name).is_file())
