"""Placement contracts as a maintainer meets them: rejected when they cannot be right, exit code 2 when they do not hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_lab import edit, patch
from rebase_lab import make_lab

from gh200_rebase.engine.resolve import resolve
from gh200_rebase.proofs.prove import check_placements
from gh200_rebase.syntax.tree import MemoryTree
from tests.unit.rebase.test_patchfile import EDIT, rejection, write


def test_placement_contract_violation_is_exit_2_with_the_line(tmp_path: Path) -> None:
    lab = make_lab(tmp_path)
    directory = Path(lab.upstream("v1").removeprefix("path:"))
    trainer = directory / "simpletuner/helpers/training/trainer.py"
    trainer.write_text(trainer.read_text() + "\n    def run(self):\n        return 0\n")
    said = lab.run("--upstream", f"path:{directory}", "--skip-tests", code=2)
    assert "01/gate" in said or "01/begin" in said
    assert "run is defined again here: the one that was patched is dead" in said
    assert not lab.fork.exists()
    assert "MISPLACED 01/begin" in lab.run("check", "--upstream", f"path:{directory}", code=2)
    lab.run("--upstream", f"path:{directory}", "--skip-tests", "--accept-drift")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('after_every = "x"', "after_every must be of type list"),
        ("after_every = [1]", "after_every must be a list of strings"),
        ('after_every = ["x ="]', "after_every: 'x =': not Python"),
        ('before_any = ["..."]', "matches everything"),
        ('last_stored = ["a.b"]', "'a.b' is not a name"),
        ('stored_once = ["x"]', "'x' is not an attribute"),
    ],
)
def test_placement_contract_that_cannot_be_right_is_rejected(tmp_path: Path, line: str, reason: str) -> None:
    write(tmp_path, EDIT + line + "\n")
    assert reason in rejection(tmp_path)


# An innocent upstream, and for each contract one that breaks it.
@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("def f(x):\n    a()\n    b()\n", ""),
        ("def f(x):\n    if x:\n        return\n    a()\n    b()\n", ""),
        ("if x:\n    def f(x):\n        a()\n        b()\nelse:\n    def f(x):\n        pass\n", "is not patched"),
        ("try:\n    def f(x):\n        pass\nexcept E:\n    def f(x):\n        a()\n        b()\n", "is not patched"),
        ("def f(x):\n    a()\n    b()\n    for y in z:\n        x = y\n", "x is stored again here"),
        ("def f(x):\n    return\n    a()\n    b()\n", "never reached: line 2 leaves before it"),
        ("def f(x):\n    if False:\n        a()\n    b()\n", "never reached"),
        ("raise SystemExit\ndef f(x):\n    a()\n    b()\n", "never reached"),
        ("def f(x):\n    b()\n    a()\n", "`b()` comes before it"),
        ("def f(x):\n    a()\n", "there is none in f"),
        ("def f(x):\n    a()\n    b()\n    x = 1\n", "x is stored again here"),
        ("def f(y):\n    a()\n    b()\n", "x is not stored before it"),
        ("def f(x):\n    for i in j:\n        a()\n        b()\n", "x is not stored before it in the same round"),
        ("def f(x):\n    a()\n    b()\nf = 1\n", "f is defined again here"),
        ("def f(x):\n    a()\n    b()\nfrom m import f\n", "f is defined again here"),
        ("def f(x):\n    a()\n    b()\nf = cached(f)\n", ""),
    ],
)
def test_placement_contract_on_small_code(text: str, what: str) -> None:
    change = edit("before", "print(x)", "a()", "f", before_any=("b()",), last_stored=("x",))
    tree = MemoryTree({change.file: text.encode()})
    plan = resolve([patch(change)], tree)
    assert not plan.failed
    found = [item.what for item in check_placements(tree, plan)]
    assert bool(found) == bool(what)
    assert what in "\n".join(found)
