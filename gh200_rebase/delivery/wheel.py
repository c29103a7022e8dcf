"""The fork as a wheel, X.Y.Z+gh200.N, built by upstream's own build backend from a copy of the tree.

The same fork gives the same bytes: what is packed, in which order and with which dates and modes depends on nothing else.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from .. import REVISION
from ..errors import Rejected
from ..project import Project
from ..system.durable import write_atomic
from ..system.gitrepo import git, text
from ..workspace.builds import EXACT

_MACHINE = frozenset({"ROCM_PATH", "HIP_PATH", "ROCM_HOME", "LANG", "LANGUAGE"})
_OLDEST = 315_619_200
"""1980-01-02: a zip knows no earlier date."""
_UNIX = 3
_VERSION_LINE = re.compile(rb"^(__version__\s*=\s*[\"'])([^\"'+]+)([\"'])", re.MULTILINE)


def build_wheel(project: Project, fork: Path, into: Path) -> Path:
    """Build the wheel of the committed fork in `fork`; uncommitted changes are not in it."""
    if not (fork / "simpletuner" / "gh200").is_dir():
        raise Rejected(
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
        built = _run_backend(project, tree, Path(scratch) / "dist")
        target = into / built.name
        part = into / f".{built.name}.{os.getpid()}.part"
        try:
            _repack(built, part, _date(fork))
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    return target


def _date(fork: Path) -> int:
    return int(text(fork, "show", "--no-patch", "--format=%ct", "HEAD"))


def _repack(built: Path, into: Path, seconds: int) -> None:
    """Sorted, dated, with git's modes; stored, because what deflate gives differs between builds of zlib."""
    moment = time.gmtime(max(seconds, _OLDEST))[:6]
    with zipfile.ZipFile(built) as source, zipfile.ZipFile(into, "w") as target:
        # The list of files comes last, as the wheel's format advises.
        for info in sorted(source.infolist(), key=lambda item: (item.filename.endswith("/RECORD"), item.filename)):
            plain = zipfile.ZipInfo(info.filename, moment)
            plain.create_system = _UNIX
            plain.external_attr = (0o100755 if info.external_attr >> 16 & 0o100 else 0o100644) << 16
            target.writestr(plain, source.read(info))


def _export(fork: Path, tree: Path) -> None:
    """A clone holds exactly what is committed, bytes untouched by any checkout filter of the user."""
    tree.mkdir()
    git(tree, "clone", "--quiet", "--no-hardlinks", "--no-checkout", "--", str(fork), ".")
    write_atomic(tree / ".git" / "info" / "attributes", EXACT.encode())
    git(tree, "-c", "core.autocrlf=false", "checkout", "--quiet", "HEAD")
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
        raise Rejected(
            "The version of this upstream cannot be set",
            where=str(path),
            why=f"expected one __version__ assignment without a local part, found {count}",
            fix="build from a release of upstream",
        )
    path.write_bytes(changed)


def _backend_environment(seconds: int) -> dict[str, str]:
    """Upstream's set-up script looks for GPUs and reads variables of its own; the wheel is for all machines."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SIMPLETUNER_", "PYTHON", "LC_", "SETUPTOOLS_", "DIST_EXTRA_")) and name not in _MACHINE
    }
    fixed = {"LC_ALL": "C.UTF-8", "TZ": "UTC", "PYTHONHASHSEED": "0", "SIMPLETUNER_PLATFORM": "cpu"}
    return {**kept, **fixed, "SOURCE_DATE_EPOCH": str(seconds)}


def _run_backend(project: Project, tree: Path, dist: Path) -> Path:
    uv = os.environ.get("GH200_UV") or shutil.which("uv")
    if uv is None:
        raise Rejected("uv is needed to build the wheel", fix="run scripts/setup.sh, or install uv and put it on PATH")
    pins = project.root / "requirements" / "backend.lock"
    command = [uv, "build", "--wheel", "--python", sys.executable, "--build-constraints", str(pins)]
    command += ["--require-hashes", "--out-dir", str(dist), str(tree)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=_backend_environment(_OLDEST), umask=0o022
    )
    wheels = list(dist.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise Rejected(
            "The wheel could not be built",
            where=" ".join(command),
            why=done.stderr.strip()[-2000:],
            fix="the build backend (setuptools) is fetched from the package index: check the network, then try again",
        )
    return wheels[0]
