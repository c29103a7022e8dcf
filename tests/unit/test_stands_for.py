"""What our code stands for in upstream is declared, and a change of it stops the rebase and names both sides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from engine_lab import FAKE, FILE, edit, patch, plan_for
from rebase_lab import Lab, make_lab

from gh200_rebase.patches.patchfile import Expect
from gh200_rebase.project import Project
from gh200_rebase.proofs.bodies import Body, find_bodies
from gh200_rebase.proofs.overrides import ELSEWHERE, overrides
from gh200_rebase.syntax.tree import MemoryTree

TRAINER = "simpletuner/helpers/training/trainer.py"
UPSTREAM = '''
import threading

def used(a): return a
def unused(a): return a

class Above:
    def inherited(self): return 1
    def replaced(self): return 2

class Table(Above):
    def scan(self, names: list[str], limit=3) -> int:
        """Says something."""
        total: int = 0
        logger.info(f"{total} so far")
        threading.Thread(target=self.worker).start()
        return self.inherited() + Table.counted(total) + super().replaced()
    def worker(self):
        return used(1)
    def replaced(self): return 3
    @staticmethod
    def counted(total): return total
    def other(self): return 4
'''


def body(text: str, scope: str = "Table.scan") -> Body:
    wanted = replace(patch(), expects=(Expect(FILE, "Table", (), "", "ours", (scope,)),))
    (found,) = find_bodies([wanted], (), MemoryTree({FILE: text.encode()}))
    return found


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("limit=3", "limit=4"),
        ("total: int = 0", "total: int = 1"),
        ("used(1)", "used(2)"),
        ("def used(a): return a", "def used(a): return -a"),
        ("def inherited(self): return 1", "def inherited(self): return 9"),
        ("def replaced(self): return 2", "def replaced(self): return 9"),
        ("def counted(total): return total", "def counted(total): return 9"),
        ("@staticmethod", "@cached"),
        ("logger.info(f", "logger.info(self.pop(), f"),
    ],
)
def test_a_changed_body_has_another_digest(old: str, new: str) -> None:
    assert UPSTREAM.count(old) == 1
    assert body(UPSTREAM).digest != body(UPSTREAM.replace(old, new)).digest


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""Says something."""', '"""Says something else."""  # and a comment'),
        ('        """Says something."""\n', ""),
        ("list[str]", "Sequence[str]"),
        (" -> int:", ":"),
        ("total: int = 0", "total = 0"),
        (" so far", " until now"),
        ("def unused(a): return a", "def unused(a): return -a"),
        ("def other(self): return 4", "def other(self): return 9"),
        ("def replaced(self): return 3", "def replaced(self): return 9"),
        ("import threading\n", "import threading\n\n\n"),
    ],
)
def test_what_changes_nothing_has_the_same_digest(old: str, new: str) -> None:
    assert UPSTREAM.count(old) == 1
    assert body(UPSTREAM).digest == body(UPSTREAM.replace(old, new)).digest


def test_a_function_that_is_gone_is_a_problem_with_the_nearest() -> None:
    found = body(UPSTREAM.replace("def scan(", "def scan_all("))
    assert "scope Table.scan: not found; nearest: Table.scan_all" in found.problem
    assert "01-test.toml, expect Table (ours)" in found.ours


def test_a_function_that_moved_behind_a_shim_is_followed() -> None:
    shim = {FILE: b"from .table import Table\n", "pkg/table.py": UPSTREAM.encode()}
    tree = MemoryTree({f"simpletuner/{path}": data for path, data in shim.items()})
    wanted = Expect(f"simpletuner/{FILE}", "Table", (), "", "ours", ("Table.scan",))
    (found,) = find_bodies([replace(patch(), expects=(wanted,))], (), tree)
    assert found.digest == body(UPSTREAM).digest


def test_an_edit_declares_by_the_form_that_landed_and_not_where_it_is_skipped() -> None:
    one = edit("before", "x()", "return ...", "Table.worker", stands_for=("Table.worker",), why="ours")
    other = replace(one, scope="Table.gone", variants=(replace(one, stands_for=("Table.other",)),))
    tree = MemoryTree({FILE: UPSTREAM.encode()})
    for form, scope in ((one, "Table.worker"), (other, "Table.other")):
        (found,) = find_bodies((), plan_for(UPSTREAM, form).results, tree)
        assert (found.scope, found.ours) == (scope, "edit 01/edit (ours)")
    assert find_bodies((), plan_for(UPSTREAM, replace(one, only_if="Gone")).results, tree) == ()


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return make_lab(tmp_path)


def changed(lab: Lab, old: str, new: str) -> str:
    """The first release with a change in a function that the expectation of Loop.report declares."""
    upstream = lab.upstream("v1")
    path = Path(upstream.removeprefix("path:")) / TRAINER
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return upstream


def test_a_changed_function_stops_every_command_until_it_is_reviewed(lab: Lab) -> None:
    lab.run("check", "--upstream", lab.upstream("v1"))
    upstream = changed(lab, "        log.info", "        self.seen.clear()\n        log.info")
    key = f"{TRAINER}#Loop.report"
    for command in (["check"], ["--skip-tests"]):
        output = lab.run(*command, "--upstream", upstream, code=2)
        assert key in output and "this function, or one it calls, changed" in output
        assert "ours: 01-loop.toml, expect Loop.report (ours calls it)" in output
    output = lab.run("review", "--upstream", upstream, "--verified", f"path:{FAKE / 'v1'}", "--accept", key)
    assert "+    self.seen.clear()" in output and "1 accepted" in output
    lab.run("check", "--upstream", upstream)


def test_a_function_that_is_gone_is_a_failure(lab: Lab) -> None:
    output = lab.run("check", "--upstream", changed(lab, "def report(", "def tell("), code=1)
    assert "01-loop.toml, expect Loop.report (ours calls it): stands_for: " in output
    assert "scope Loop.report: not found" in output


ROOT = Path(__file__).resolve().parents[2]


def test_every_override_is_declared() -> None:
    project = Project(ROOT)
    found = [one for one in overrides(project.overlay) if one.upstream_class not in ELSEWHERE]
    assert found and all(one.upstream_class for one in found)
    undeclared = {f"{one.ours}.{one.method}" for one in found if one.declared_by(project.patches) is None}
    assert undeclared == set()


def test_an_override_is_found_by_its_mark_and_declared_by_its_name() -> None:
    code = b'''
class Ours(StandIn):
    """Says why. And more."""
    upstream_class, feature = "Loop", "x"
    @instead
    def report(self): ...
    @instead_where_present
    async def other(self): ...
    def own(self): ...
'''
    found = overrides(MemoryTree({"simpletuner/gh200/part/sites.py": code}))
    assert [(one.ours, one.upstream_class, one.method) for one in found] == [
        ("part.sites.Ours", "Loop", "other"),
        ("part.sites.Ours", "Loop", "report"),
    ]
    wanted = replace(patch(), expects=(Expect(FILE, "Loop.report", (), "", "why", ("Loop.report",)),))
    assert [one.declared_by([wanted]) is not None for one in found] == [False, True]
