"""What the fork changes of upstream, counted from the trees. These counts only go down."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tiny import FORK, PRISTINE

from gh200_lab.place import ROOT
from tests.golden.records import Records
from tests.golden.surface import overrides, surface

pytestmark = pytest.mark.fork


def test_surface_is_the_recorded_one(golden: Records) -> None:
    """In `patches/`, where the manifest reads it."""
    counted = Records(ROOT / "patches", writing=golden.writing)
    for name, count in surface(PRISTINE, FORK).items():
        counted.check("surface", name, count)


def test_surface_sees_what_it_counts(tmp_path: Path) -> None:
    """Two trees made here: one file with two hunks, one that is the same, and one that only the fork has."""
    pristine, fork = tmp_path / "pristine" / "simpletuner", tmp_path / "fork" / "simpletuner"
    for tree in (pristine, fork):
        tree.mkdir(parents=True)
        (tree / "same.py").write_text("x = 1\n")
    (pristine / "edited.py").write_text("".join(f"line_{number}\n" for number in range(9)))
    lines = (pristine / "edited.py").read_text().splitlines()
    (fork / "edited.py").write_text("\n".join(["import ours", *lines[:5], "changed", *lines[6:]]) + "\n")
    (fork / "ours.py").write_text("y = 2\n")
    (fork / "gh200").mkdir()
    (fork / "gh200" / "part.py").write_text("class A(B):\n    @override\n    def f(self): ...\n    def g(self): ...\n")
    expected = {"files": 1, "hunks": 2, "added": 2, "removed": 1, "overrides": 1}
    assert surface(pristine.parent, fork.parent) == expected
    assert overrides(fork.parent) == ["part.A.f"]


def test_a_new_directory_of_upstream_that_only_the_fork_has_is_ours() -> None:
    only = subprocess.run(
        ["diff", "-rq", "-x", "gh200", "-x", "__pycache__", str(PRISTINE / "simpletuner"), str(FORK / "simpletuner")],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.splitlines()
    added = [line for line in only if line.startswith("Only in")]
    assert [line.rpartition(": ")[2] for line in added] == ["in_memory.py"]
