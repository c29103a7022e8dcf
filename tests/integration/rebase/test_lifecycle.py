"""A life for each patch: its class, who was informed, and the test that says when it can go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from engine_lab import FILE, edit, only, patch, plan_for
from rebase_lab import Lab, make_lab

from gh200_lab.place import ROOT
from gh200_rebase.engine.resolve import resolve
from gh200_rebase.lock.lifecycle import lives
from gh200_rebase.patches.patchmodel import CLASSES, HAS, Life
from gh200_rebase.project import Project
from gh200_rebase.syntax.tree import MemoryTree

LOOP = "patches/01-loop.toml"
SCRIPT = """
import sys
print(f"{sys.argv[1]}: OUTPUT")
sys.exit(CODE)
"""


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return make_lab(tmp_path)


def test_every_patch_edit_and_workaround_says_when_it_can_go() -> None:
    found = list(lives(Project(ROOT)))
    assert len(found) > len(Project(ROOT).patches)
    for what, life, _ in found:
        assert life.kind in CLASSES and life.retire_when, what
        if life.kind != "integration":
            report, script = ROOT / life.forwarded, ROOT / life.retire_when
            assert report.suffix == ".md" and script == report.with_suffix(".py"), what
            headings = ("Describe the bug", "To reproduce", "Expected behaviour", "Cause", "Proposed change")
            assert all(f"### {heading}" in report.read_text() for heading in headings), what


def given(lab: Lab, old: str, new: str) -> None:
    path = lab.root / LOOP
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ('class = "hack"', "class 'hack' must be one of"),
        ('class = "workaround"', "a workaround needs forwarded and retire_when"),
        ('forwarded = "upstream/gone.md"', "there is no report"),
        ('retire_when = "upstream/gone.py"', "there is no script"),
        ('retire_when = "has:x ="', "not Python"),
    ],
)
def test_a_life_that_cannot_be_right_is_rejected(lab: Lab, lines: str, problem: str) -> None:
    given(lab, 'risk = "high"', f'risk = "high"\n{lines}')
    assert problem in lab.run("check", "--upstream", lab.upstream("v1"), code=4)


def report(lab: Lab, output: str, code: int) -> None:
    directory = lab.root / "upstream"
    directory.mkdir(exist_ok=True)
    for name in ("fault.md", "fault.py"):
        (directory / name).touch()
    (directory / "reproduce.py").write_text(SCRIPT.replace("OUTPUT", output).replace("CODE", str(code)))
    life = 'class = "workaround"\nforwarded = "upstream/fault.md"\nretire_when = "upstream/fault.py"'
    if "workaround" not in (lab.root / LOOP).read_text():
        given(lab, 'risk = "high"', f'risk = "high"\n{life}')


@pytest.mark.parametrize(
    ("output", "code", "result", "exit_code"),
    [
        ("ten images are lost", 1, "needed", 0),
        ("not reproduced", 0, "can go", 0),
        ("cannot be tried here: no GPU", 0, "not tried", 0),
        ("broken", 7, "failed", 3),
    ],
)
def test_retire_runs_the_reproduction(lab: Lab, output: str, code: int, result: str, exit_code: int) -> None:
    report(lab, output, code)
    printed = lab.run("retire", "--upstream", lab.upstream("v1"), code=exit_code)
    (line,) = [line for line in printed.splitlines() if line.startswith("01-loop ")]
    assert result in line
    assert (": 01-loop" in printed.splitlines()[-1]) == (result == "can go")


def test_retire_looks_for_a_pattern(lab: Lab) -> None:
    given(lab, 'risk = "high"', """risk = "high"\nretire_when = 'has:self.callbacks.fire("begin", ...)'""")
    assert "0 of" in lab.run("retire", "--upstream", lab.upstream("v1")).splitlines()[-1]
    path = Path(lab.upstream("v1").removeprefix("path:")) / "simpletuner/helpers/training/trainer.py"
    path.write_text(path.read_text() + '\n    def begin(self):\n        self.callbacks.fire("begin", self)\n')
    assert ": 01-loop" in lab.run("retire", "--upstream", f"path:{path.parents[3]}").splitlines()[-1]


def test_an_edit_whose_effect_upstream_has_is_reported_and_not_applied() -> None:
    ours = edit("before", "x = checked(x)", "use(x)", "f", life=Life(retire_when=f"{HAS}checked(...)"))
    assert only(plan_for("def f(x):\n    use(x)\n", ours)).status == "applied"
    for upstream in (
        "def f(x):\n    y = checked(x)\n    use(x)\n",
        "def f(x):\n    use(x)\ndef g(x):\n    checked(x)\n",
    ):
        plan = plan_for(upstream, ours)
        assert only(plan).status == "skipped" and "upstream does this itself" in only(plan).detail
        assert plan.final.get(FILE, upstream.encode()) == upstream.encode()


def test_the_very_code_of_an_edit_in_upstream_is_not_added_twice() -> None:
    ours = edit("before", "x = str(x)", "use(x)", "f")
    plan = resolve([patch(ours)], MemoryTree({FILE: b"def f(x):\n    x = str(x)\n    use(x)\n"}), pristine=True)
    assert only(plan).status == "skipped" and "may be retired" in only(plan).detail
    # A tree that was patched before is something else.
    hook = replace(ours, code="gh200.x(x)")
    patched = MemoryTree({FILE: b"import gh200\ndef f(x):\n    gh200.x(x)\n    use(x)\n"})
    assert only(resolve([patch(hook)], patched, pristine=True)).status == "already"


def test_taken_over_is_drift_to_review(lab: Lab) -> None:
    given(lab, 'why = "the pair is complete"', 'why = "x"\nretire_when = "has:self.begin_round(...)"')
    lab.run("check", "--upstream", lab.upstream("v1"))
    path = Path(lab.upstream("v1").removeprefix("path:")) / "simpletuner/helpers/training/trainer.py"
    path.write_text(path.read_text() + "\n    def other(self):\n        self.begin_round(1)\n")
    output = lab.run("check", "--upstream", f"path:{path.parents[3]}", code=2)
    assert "TO REVIEW 01/begin" in output and "it was applied, now it is skipped" in output
    assert "upstream does this itself" in output
