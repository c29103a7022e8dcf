"""What the tests of set-up need: the shell functions, fake wheels, a checkout that uses them."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "requirements"
BASE_PYTHON = str(Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}")


def bash(script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a line of shell with all set-up functions at hand."""
    sources = "".join(f'source "{ROOT}/scripts/lib/{name}.sh";' for name in ("bootstrap", "checks", "torch"))
    return subprocess.run(
        ["/bin/bash", "-c", f"set -euo pipefail; {sources} {script}", "test", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        check=False,
    )


def find_uv() -> str:
    found = bash("gh200_find_uv")
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def write_wheel(directory: Path, name: str, version: str, body: str = "") -> str:
    """A real wheel of a fake package; returns its lines for a lock."""
    module, info = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}.dist-info"
    files = {
        f"{module}/__init__.py": f"__version__ = {version!r}\n{body}",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(text)}\n"
    wheel = directory / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in (files | {f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}).items():
            # Without a date of its own an entry gets the time: the same wheel, written twice, would have two hashes.
            archive.writestr(zipfile.ZipInfo(path), text)
    return f"{name}=={version} \\\n    --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"


@dataclass(frozen=True)
class Checkout:
    """A copy of the scripts beside locks of fake packages."""

    root: Path
    environment: dict[str, str]

    def command(self, *arguments: str) -> list[str]:
        return [str(self.root / "scripts/setup.sh"), "--python", BASE_PYTHON, *arguments]

    def setup(self, *arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            self.command(*arguments), capture_output=True, text=True, env=self.environment, check=False, timeout=60
        )
        assert done.returncode == code, done.stderr
        return done.stderr

    def run(self, python: str, line: str) -> str:
        command = [str(self.root / python), "-c", line]
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=self.root).stdout.strip()

    def lock(self, name: str, *packages: tuple[str, str]) -> None:
        wheels = self.root.parent / "wheels"
        (self.root / f"requirements/{name}.lock").write_text("".join(write_wheel(wheels, *each) for each in packages))


def make_checkout(directory: Path) -> Checkout:
    """With a uv of its own cache, and without any index but a directory of wheels."""
    root = directory / "checkout"
    shutil.copytree(ROOT / "scripts", root / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "requirements").mkdir()
    (root / "gh200_lab").mkdir()
    shutil.copy(ROOT / "gh200_lab/stages.py", root / "gh200_lab")
    (directory / "wheels").mkdir()
    shutil.copy(REQUIREMENTS / "glibc.txt", root / "requirements")
    local = {"UV_NO_INDEX": "1", "UV_FIND_LINKS": str(directory / "wheels"), "UV_CACHE_DIR": str(directory / "cache")}
    outer = {name: value for name, value in os.environ.items() if name not in ("GH200_LOG", "GH200_VERBOSE")}
    made = Checkout(root, outer | local | {"PATH": f"{Path(find_uv()).parent}:{os.environ['PATH']}"})
    made.lock("tool", ("leaf", "1.0"), ("twig", "2.0"))
    made.lock("fork", ("leaf", "1.0"), ("torch", "2.14.1"), ("nvidia-nvtx", "13.0"), ("nvidia-ml-py", "13.0"))
    return made
