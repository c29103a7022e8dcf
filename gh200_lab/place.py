"""Where the trees are that the lab trains in and compares: the fork, the pristine upstream, a directory to work in."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = "./execute_gh200_rebase.sh --skip-tests builds one in build/fork"
# What was set for another run, or for a light import, would win over what a run of the lab is given.
FOREIGN = (
    "CONFIG_BACKEND",
    "CONFIG_PATH",
    "CONFIG_TYPE",
    "ENV",
    "SIMPLETUNER_CONFIG_BACKEND",
    "SIMPLETUNER_ENV",
    "SIMPLETUNER_SKIP_TORCH",
)


@dataclass(frozen=True)
class Place:
    """The trees of a checkout."""

    fork: Path
    pristine: Path | None
    work: Path

    @contextmanager
    def directory(self, name: str, keep: bool) -> Iterator[Path]:
        """A fresh one to work in, removed at the end."""
        self.work.mkdir(parents=True, exist_ok=True)
        directory = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.work))
        try:
            yield directory
        finally:
            if keep:
                print(f"kept: {directory}", file=sys.stderr)
            else:
                shutil.rmtree(directory, ignore_errors=True)


def environment(tree: Path, **more: str) -> dict[str, str]:
    """That of a process which imports `simpletuner` from this tree, asks no hub for anything, and can be repeated."""
    kept = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    own = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": str(tree),
        # Upstream's order of buckets hangs on it: two first runs in one directory would show two losses.
        "PYTHONHASHSEED": "0",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return kept | own | more


def find_place() -> Place:
    """GH200_FORK and GH200_PRISTINE where the rebase tool sets them; else the built ones; else the fork this lies in."""
    fork = _tree("GH200_FORK", ROOT, ROOT / "build" / "fork")
    if fork is None:
        raise FileNotFoundError("there is no fork to test", BUILD)
    home = next((up.parent for up in fork.parents[:2] if up.name == "build"), fork)
    pristine = _tree("GH200_PRISTINE", ROOT / "build" / "pristine", home / "build" / "pristine")
    return Place(fork, pristine, home / "build" / "validation")


def _tree(variable: str, *usual: Path) -> Path | None:
    named = os.environ.get(variable)
    if named and not (Path(named) / "simpletuner" / "__init__.py").is_file():
        raise FileNotFoundError(
            f"{variable} names {named}, which is no SimpleTuner tree", f"unset {variable}, or {BUILD}"
        )
    for tree in [Path(named)] if named else usual:
        if (tree / "simpletuner" / "__init__.py").is_file():
            return tree.resolve()
    return None
