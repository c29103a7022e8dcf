"""A whole miniature of this repository in a temporary directory, with the invented upstream as its releases."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FAKE = ROOT / "tests" / "fake_upstream"


@dataclass(frozen=True)
class Lab:
    root: Path

    @property
    def fork(self) -> Path:
        return self.root / "build" / "fork"

    def run(self, *arguments: str, code: int = 0, **environment: str) -> str:
        """The real tool in a real process; its exit code is part of what is asserted."""
        import os

        done = subprocess.run(
            [sys.executable, str(self.root / "gh200_rebase"), *arguments],
            cwd=self.root,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=120,
        )
        output = done.stdout + done.stderr
        assert done.returncode == code, output
        assert "Traceback" not in output, output
        return output

    def upstream(self, release: str) -> str:
        """A copy of an invented release, as a --upstream argument."""
        directory = self.root.parent / f"upstream-{release}"
        if not directory.exists():
            shutil.copytree(FAKE / release, directory)
        return f"path:{directory}"

    def git(self, *arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(self.fork), *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    def write_lock(self, *releases: str) -> None:
        """What `lock` does, for releases that no registry has."""
        sys.path.insert(0, str(self.root))
        from gh200_rebase.engine.resolve import resolve
        from gh200_rebase.lock.drift import observe
        from gh200_rebase.patches import lockfile
        from gh200_rebase.project import Project
        from gh200_rebase.proofs.bodies import find_bodies
        from gh200_rebase.syntax.tree import DirectoryTree

        versions = {"v1": "1.0.0", "v2": "2.0.0"}
        project = Project(self.root)
        observed = {}
        for release in releases:
            tree, version = DirectoryTree(FAKE / release), versions[release]
            results = resolve(project.patches, tree).results
            bodies = find_bodies(project.patches, results, tree)
            observed[version] = ("0" * 64, observe(version, results, bodies))
        lockfile.save(lockfile.build(observed), project.lock_path)


def make_lab(directory: Path) -> Lab:
    root = directory / "project"
    shutil.copytree(ROOT / "gh200_rebase", root / "gh200_rebase", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(FAKE / "patches", root / "patches")
    shutil.copytree(FAKE / "overlay", root, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "docs").mkdir()
    lab = Lab(root)
    lab.write_lock("v1")
    return lab


def snapshot(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Every file with its bytes and mode, git's own left out."""
    return {
        path.relative_to(directory).as_posix(): (path.read_bytes(), path.stat().st_mode)
        for path in sorted(directory.rglob("*"))
        if path.is_file() and ".git" not in path.relative_to(directory).parts
    }
