"""What our code stands for in upstream is declared, and a change of it stops the rebase and names both sides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from engine_lab import FAKE, FILE, edit, patch, plan_for
from rebase_lab import Lab, make_lab

from gh200_lab.place import ROOT
from gh200_rebase.lock.drift import REVIEW, find_drift, observe
from gh200_rebase.patches.lockfile import build
from gh200_rebase.patches.patchfile import Expect
from gh200_rebase.project import Project
from gh200_rebase.proofs.bodies import Body, find_bodies
from gh200_rebase.proofs.overrides import ELSEWHERE, overrides
from gh200_rebase.syntax.tree import MemoryTree

TRAINER = "simpletuner/helpers/training/trainer.py"
UPSTREAM = '''
import threading
from math import ceil
from .tables import LIMITS as BOUNDS

PATTERN = "a+"
TABLE = {}
TABLE["x"] = 1
if threading.active_count():
    FAST = 1
else:
    FAST = 2
UNUSED = 5

def used(a): return a
def unused(a): return a

class Above:
    step = 7
    def __init__(self, size): self.size = size
    def inherited(self): return self.step
    def replaced(self): return 2

class Row:
    width = 11
    def __init__(self, key): self.key = key.strip()
    def never(self): return 12

class Table(Above):
    DEPTH = 3
    ALSO = DEPTH + 20
    idle = 6
    def __init__(self, size):
        super().__init__(size)
        self.rows = [size]
        self.other_rows = [size, 0]
    def scan(self, names: list[str], limit=3) -> int:
        """Says something."""
        total: int = 0
        logger.info(f"{total} so far")
        threading.Thread(target=self.worker).start()
        return self.inherited() + Table.counted(total) + super().replaced()
    def worker(self):
        def inner(text): return re.match(PATTERN, text) and FAST
        Row("a")
        return used(1) + [ceil(row) for row in self.rows + BOUNDS] + TABLE[self.ALSO] + getattr(self, "named")
    def named(self): return type(self).made + self.size
    made = 13
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
        ("def inherited(self): return self.step", "def inherited(self): return 9"),
        ('PATTERN = "a+"', 'PATTERN = "a*"'),
        ('TABLE["x"] = 1', 'TABLE["x"] = 2'),
        ("if threading.active_count()", "if not threading.active_count()"),
        ("FAST = 2", "FAST = 3"),
        ("import ceil", "import floor as ceil"),
        ("from .tables", "from .chairs"),
        ("step = 7", "step = 8"),
        ("self.size = size", "self.size = 2 * size"),
        ("width = 11", "width = 12"),
        ("key.strip()", "key.lstrip()"),
        ("DEPTH = 3", "DEPTH = 4"),
        ("ALSO = DEPTH", "ALSO = 2 * DEPTH"),
        ("self.rows = [size]", "self.rows = []"),
        ("made = 13", "made = 14"),
        ("return type(self).made", "return -type(self).made"),
        ("and FAST", "or FAST"),
        ("for row in self.rows", "for row in self.rows if row"),
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
        ("UNUSED = 5", "UNUSED = 6"),
        ("idle = 6", "idle = 7"),
        ("def never(self): return 12", "def never(self): return 13"),
        ("self.other_rows = [size, 0]", "self.other_rows = []"),
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


def test_a_nested_function_uses_what_is_around_it() -> None:
    text = "A = 1\ndef outer(a):\n    b = [A]\n    def other(): return 2\n    def inner(c): return a + b + other()\n    d = 3\n"
    digests = {body(text, "outer.inner").digest}
    for old, new in (("b = [A]", "b = []"), ("A = 1", "A = 2"), ("return 2", "return 3"), ("inner(c)", "inner(c=1)")):
        assert text.count(old) == 1
        digests.add(body(text.replace(old, new), "outer.inner").digest)
    assert len(digests) == 5
    assert body(text.replace("d = 3", "d = 4"), "outer.inner").digest in digests


def test_a_local_name_is_not_the_constant_of_that_name() -> None:
    text = "A = 1\nB = 1\ndef f(B):\n    A = 2\n    return A + B\ndef g():\n    global A\n    A += 1\n"
    changed = text.replace("A = 1", "A = 9").replace("B = 1", "B = 9")
    assert body(text, "f").digest == body(changed, "f").digest
    assert body(text, "g").digest != body(changed, "g").digest


def test_a_function_that_moved_behind_a_shim_is_followed() -> None:
    text = UPSTREAM.replace("from .tables", "from tables")
    shim = {FILE: b"from .table import Table\n", "pkg/table.py": text.encode()}
    tree = MemoryTree({f"simpletuner/{path}": data for path, data in shim.items()})
    wanted = Expect(f"simpletuner/{FILE}", "Table", (), "", "ours", ("Table.scan",))
    (found,) = find_bodies([replace(patch(), expects=(wanted,))], (), tree)
    assert found.digest == body(text).digest


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
        assert key in output and "this function, or something of its file that it uses, changed" in output
        assert "ours: 01-loop.toml, expect Loop.report (ours calls it)" in output
    output = lab.run("review", "--upstream", upstream, "--verified", f"path:{FAKE / 'v1'}", "--accept", key)
    assert "+    self.seen.clear()" in output and "1 accepted" in output
    lab.run("check", "--upstream", upstream)


def test_a_function_that_only_some_releases_have_is_to_review_when_it_goes_or_comes() -> None:
    wanted = replace(patch(), expects=(Expect(FILE, "Table", (), "Table.scan", "ours", ("Table.scan",)),))
    trees = [MemoryTree({FILE: text.encode()}) for text in (UPSTREAM, UPSTREAM.replace("def scan(", "def scan_all("))]
    there, gone = (find_bodies([wanted], (), tree) for tree in trees)
    for before, after, sentence in (
        (there, gone, "it was found, now it is missing"),
        (gone, there, "it was missing, now it is found"),
    ):
        (drift,) = find_drift(build({"1.0": ("", observe("1.0", (), before))}), "2.0", (), after)
        assert (drift.edit_key, drift.level) == (f"{FILE}#Table.scan", REVIEW)
        assert drift.what == f"{sentence}; ours: 01-test.toml, expect Table (ours)"
    assert find_drift(build({"1.0": ("", observe("1.0", (), gone))}), "2.0", (), gone) == ()


def test_a_function_that_is_gone_is_a_failure(lab: Lab) -> None:
    output = lab.run("check", "--upstream", changed(lab, "def report(", "def tell("), code=1)
    assert "01-loop.toml, expect Loop.report (ours calls it): stands_for: " in output
    assert "scope Loop.report: not found" in output


def test_every_override_is_declared() -> None:
    project = Project(ROOT)
    found = [one for one in overrides(project.overlay) if one.upstream_class not in ELSEWHERE]
    assert found and all(one.upstream_class for one in found)
    undeclared = {f"{one.ours}.{one.method}" for one in found if one.declared_by(project.patches) is None}
    assert undeclared == set()


def test_an_override_is_found_by_its_mark_and_declared_by_its_name() -> None:
    code = b'''
class Ours(Overrides):
    """Says why. And more."""
    upstream_class, feature = "Loop", "x"
    @override
    def report(self): ...
    @override_if_present
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
