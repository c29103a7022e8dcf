"""The tests mirror the packages: `tests/unit/<package>/test_<module>.py`, `tests/integration/<package>/`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gh200_lab.place import ROOT

TESTS = ROOT / "tests"
GH200 = ROOT / "simpletuner/gh200"
OTHERS = {
    "rebase": ROOT / "gh200_rebase",
    "lab": ROOT / "gh200_lab",
    "scripts": ROOT / "scripts",
    "cuda_sim": TESTS / "cuda_sim",
}


def package_of(directory: Path) -> Path:
    """The package that a directory of tests is for."""
    first, *rest = directory.parts or ("",)
    return OTHERS.get(first, GH200 / first).joinpath(*rest)


def _names(package: Path) -> set[str]:
    """The package itself and all its modules and subpackages."""
    found = [package, *package.rglob("*.py"), *package.rglob("*/")]
    return {path.stem for path in found}


def files_of(level: str) -> list[Path]:
    return sorted(path.relative_to(TESTS / level) for path in (TESTS / level).rglob("test_*.py"))


@pytest.mark.parametrize("file", files_of("unit"), ids=str)
def test_a_unit_test_file_is_named_after_a_module(file: Path) -> None:
    assert file.stem.removeprefix("test_") in _names(package_of(file.parent))


@pytest.mark.parametrize("directory", sorted({file.parent for file in files_of("integration")}), ids=str)
def test_a_directory_of_integration_tests_is_named_after_a_package_or_module(directory: Path) -> None:
    assert package_of(directory).is_dir() or any(GH200.rglob(f"{directory}.py"))


@pytest.mark.parametrize("module", sorted((TESTS / "support").glob("*.py")), ids=lambda path: path.stem)
def test_a_support_module_is_used(module: Path) -> None:
    files = (path for path in TESTS.rglob("*.py") if path != module)
    assert any(module.stem in path.read_text(encoding="utf-8") for path in files)


def test_the_tests_that_the_readme_names_exist() -> None:
    named = re.findall(r"`(test_\w+\.py)(?:::(\w+))?", (TESTS / "README.md").read_text(encoding="utf-8"))
    assert len(named) > 6
    for file, test in named:
        assert not test or f"def {test}(" in (TESTS / "e2e" / file).read_text(encoding="utf-8"), (file, test)
