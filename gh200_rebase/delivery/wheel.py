"""The fork as a wheel, X.Y.Z+gh200.N, built by upstream's own build backend from a copy of the tree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from .. import REVISION
from ..errors import Refused
from ..project import Project

_VERSION_LINE = re.compile(rb"^(__version__\s*=\s*[\"'])([^\"'+]+)([\"'])", re.MULTILINE)


def build_wheel(project: Project, fork: Path, into: Path) -> Path:
    """Build the wheel of the committed fork in `fork`; uncommitted changes are not in it."""
    if not (fork / "simpletuner" / "gh200").is_dir():
        raise Refused(
            "There is no fork to build a wheel from",
            where=str(fork),
            fix="build it first: ./execute_gh200_rebase.sh --skip-tests",
        )
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gh200-wheel-") as scratch:
        tree = Path(scratch) / "tree"
        _export(fork, tree)
        _drop_operator_files(project, tree)
        _set_version(tree / "simpletuner" / "__init__.py")
        built = _run_backend(tree, Path(scratch) / "dist")
        target = into / built.name
        shutil.copyfile(built, target.with_suffix(".part"))
        target.with_suffix(".part").replace(target)
    return target


def _export(fork: Path, tree: Path) -> None:
    """A clone holds exactly what is committed, bytes untouched by any checkout filter of the user."""
    command = ["git", "-c", "core.autocrlf=false", "clone", "--quiet", "--no-hardlinks", "--", str(fork), str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused("The fork cannot be copied", where=str(fork), why=done.stderr.strip(), fix="rebuild the fork")
    shutil.rmtree(tree / ".git")


def _drop_operator_files(project: Project, tree: Path) -> None:
    """Operator files stay with the tree: a package named `scripts` or `docs` has no place in site-packages."""
    for patch in project.patches:
        for target in project.payloads[patch.number]:
            if not target.startswith("simpletuner/"):
                (tree / target).unlink(missing_ok=True)


def _set_version(path: Path) -> None:
    source = path.read_bytes()
    changed, count = _VERSION_LINE.subn(rb"\g<1>\g<2>+gh200.%d\g<3>" % REVISION, source)
    if count != 1:
        raise Refused(
            "The version of this upstream cannot be set",
            where=str(path),
            why=f"expected one __version__ assignment without a local part, found {count}",
            fix="build from a release of upstream",
        )
    path.write_bytes(changed)


def _run_backend(tree: Path, dist: Path) -> Path:
    uv = os.environ.get("GH200_UV") or shutil.which("uv")
    if uv is None:
        raise Refused("uv is needed to build the wheel", fix="run scripts/setup.sh, or install uv and put it on PATH")
    command = [uv, "build", "--wheel", "--python", sys.executable, "--out-dir", str(dist), str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(dist.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise Refused(
            "The wheel could not be built",
            where=" ".join(command),
            why=done.stderr.strip()[-2000:],
            fix="the build backend (setuptools) is fetched from the package index: check the network, then try again",
        )
    return wheels[0]
