"""The checks fail for a module in no package, an import against the layers or inside a function, an unused name, a wrong type."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gh200_lab.place import ROOT

TOOLS = Path(sys.executable).parent
PACKAGES = ("simpletuner", "gh200_rebase", "gh200_lab")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("gates")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    return copy


def gate(checkout: Path, tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TOOLS / tool, *arguments], cwd=checkout, capture_output=True, text=True, timeout=500)


def test_the_layers_of_this_checkout_hold(checkout: Path) -> None:
    done = gate(checkout, "lint-imports", "--no-cache")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        ("simpletuner/gh200/stray.py", "", "stray"),
        ("simpletuner/gh200/errors.py", "from .config import keys", "gh200.errors -> simpletuner.gh200.config"),
        (
            "simpletuner/gh200/ramp/lr.py",
            "from ..backends.tensors import directories",
            "gh200.ramp.lr -> simpletuner.gh200.backends.tensors",
        ),
        ("simpletuner/gh200/runtime.py", "def late():\n    from .memory import numa", "inside a function"),
        ("gh200_rebase/errors.py", "from gh200_lab import place", "gh200_rebase.errors -> gh200_lab.place"),
    ],
)
def test_a_broken_contract_is_named(checkout: Path, file: str, line: str, message: str) -> None:
    path = checkout / file
    before = path.read_text() if path.exists() else None
    path.write_text(f"{before or ''}\n{line}\n")
    try:
        done = gate(checkout, "lint-imports", "--no-cache")
    finally:
        path.write_text(before) if before is not None else path.unlink()
    assert done.returncode == 1 and message in " ".join(done.stdout.split()), done.stdout


def test_an_unused_name_is_found(checkout: Path) -> None:
    (checkout / "unused.py").write_text("import os\n")
    done = gate(checkout, "ruff", "check", "unused.py")
    assert done.returncode == 1 and "F401" in done.stdout


@pytest.mark.slow(reason="mypy of the whole checkout without its cache")
def test_a_wrong_type_is_found(checkout: Path) -> None:
    path = checkout / "gh200_rebase/text.py"
    path.write_text(path.read_text() + "\nWRONG: int = 'text'\n")
    done = gate(checkout, "mypy")
    assert done.returncode == 1 and "gh200_rebase/text.py" in done.stdout


@pytest.fixture
def names(tmp_path: Path) -> Path:
    """A checkout of one module, with a vocabulary of one word that it may use once."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    for name in ("scripts", "simpletuner/gh200", "gh200_rebase", "gh200_lab"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "simpletuner/gh200/part.py").write_text("class OldWord: ...\n")
    (tmp_path / "scripts/vocabulary.json").write_text(
        '{"words": {"old word": "new"}, "allowed": {"simpletuner/gh200/part.py": {"old word": 1}}}'
    )
    return tmp_path


def check_names(checkout: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return gate(checkout, "python", str(ROOT / "scripts/check_names.py"), "--root", str(checkout), *options)


@pytest.mark.parametrize("line", ["old_word = 1", "# an old word", "class OldWords2: OldWord()", "x = 'Old-word'"])
def test_a_new_use_of_an_old_word_is_named(names: Path, line: str) -> None:
    assert check_names(names).returncode == 0
    with (names / "simpletuner/gh200/part.py").open("a") as file:
        file.write(line + "\n")
    done = check_names(names)
    assert done.returncode == 1 and "simpletuner/gh200/part.py" in done.stdout and "write: new" in done.stdout


@pytest.mark.parametrize(
    "file",
    ["simpletuner/gh200/page.js", "gh200_rebase/text.py", "gh200_lab/old_word.py", "tests/test_it.py", "scripts/run.sh",
     "scripts/job.sbatch", "patches/01-it.toml", "docs/PAGE.md", "docs/image.svg", "README.md", "config/it.json",
     "tests/cuda_sim/driver.c", "run"],
)  # fmt: skip
def test_an_old_word_is_named_in_every_kind_of_file(names: Path, file: str) -> None:
    (names / file).parent.mkdir(parents=True, exist_ok=True)
    (names / file).write_text("# an old word\n" if "old_word" not in file else "")
    done = check_names(names)
    assert done.returncode == 1 and file in done.stdout, done.stdout


def test_a_class_that_is_defined_twice_in_a_package_is_named(names: Path) -> None:
    (names / "simpletuner/gh200/other.py").write_text("class Twin: ...\n")
    (names / "gh200_lab/other.py").write_text("class Twin: ...\n")
    assert check_names(names).returncode == 0, "in two packages"
    (names / "simpletuner/gh200/third.py").write_text("class Twin: ...\n")
    done = check_names(names)
    assert done.returncode == 1 and "class Twin" in done.stdout and "third.py:1" in done.stdout


def test_counts_of_old_words_only_go_down(names: Path) -> None:
    (names / "simpletuner/gh200/part.py").write_text("old_word = 'old word'\n")
    assert check_names(names, "--write").returncode == 1, "two uses, and one is allowed"
    (names / "simpletuner/gh200/part.py").write_text("")
    assert check_names(names, "--write").returncode == 0
    (names / "simpletuner/gh200/part.py").write_text("old_word = 1\n")
    assert check_names(names).returncode == 1
