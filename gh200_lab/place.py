"""Where the trees are that a validation script compares: the fork, the pristine upstream, a folder to work in."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = "./execute_gh200_rebase.sh --skip-tests builds one in build/fork"


@dataclass(frozen=True)
class Place:
    fork: Path
    pristine: Path | None
    work: Path

    def environment(self, tree: Path, **more: str) -> dict[str, str]:
        """That of a process which imports `simpletuner` from this tree, and asks no hub for anything."""
        return {**os.environ, "PYTHONPATH": str(tree), "HF_HUB_OFFLINE": "1", **more}


def find_place() -> Place:
    """GH200_FORK and GH200_PRISTINE where the rebase tool sets them; else the built ones; else the fork this lies in."""
    fork = _tree("GH200_FORK", ROOT, ROOT / "build" / "fork")
    if fork is None:
        raise FileNotFoundError("there is no fork to test", BUILD)
    home = fork.parent.parent if fork.parent.name == "build" else fork
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
