"""One mutant of the invented upstream for each way in which an edit could land and do nothing, or harm."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from engine_lab import FILE, edit, patch
from rebase_lab import Lab, make_lab

from gh200_lab.place import ROOT
from gh200_rebase.engine.resolve import resolve
from gh200_rebase.lock.drift import REVIEW, find_drift, observe
from gh200_rebase.patches.lockfile import build
from gh200_rebase.patches.patchmodel import Expect
from gh200_rebase.project import Project
from gh200_rebase.proofs.bodies import find_bodies
from gh200_rebase.proofs.interfaces import check_interfaces
from gh200_rebase.syntax.tree import MemoryTree

TRAINER = "simpletuner/helpers/training/trainer.py"
LOCAL = "simpletuner/helpers/data_backend/local.py"


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return make_lab(tmp_path)


def mutated(lab: Lab, file: str, old: str, new: str) -> str:
    """The first release with one change; it must be one."""
    upstream = lab.upstream("v1")
    path = Path(upstream.removeprefix("path:")) / file
    text = path.read_text()
    assert text.count(old) == 1, (old, text.count(old))
    path.write_text(text.replace(old, new))
    return upstream


def stopped(lab: Lab, upstream: str) -> str:
    """What `check` says; a build stops with the same code and writes nothing."""
    output = lab.run("check", "--upstream", upstream, code=2)
    lab.run("--skip-tests", "--upstream", upstream, code=2)
    assert not lab.fork.exists()
    return output


def test_a_wrapped_expression_is_in_another_statement(lab: Lab) -> None:
    """The loop became a comprehension: the expression and what encloses the statement are the same as before."""
    gate = '            if number % self.settings["every"] == 0:\n                self.seen.append(pair)\n'
    lazy = '            self.seen += (p for p in [pair] if number % self.settings["every"] == 0)\n'
    output = stopped(lab, mutated(lab, TRAINER, gate, lazy))
    assert "01/gate" in output and "the anchored statement itself changed" in output


def test_a_condition_that_leaves_before_the_hook(lab: Lab) -> None:
    early = '        if self.settings.get("dry"):\n            return 0\n        number = 0\n'
    output = stopped(lab, mutated(lab, TRAINER, "        number = 0\n", early))
    assert "01/begin" in output and "a return, break or continue before it" in output


def test_a_condition_that_ends_the_round_before_the_hook(lab: Lab) -> None:
    line = "            pair = self.fetch(number)  # one pair per round\n"
    output = stopped(
        lab, mutated(lab, TRAINER, line, f"            if number in self.seen:\n                continue\n{line}")
    )
    assert "01/begin" in output and "a return, break or continue before it" in output


def test_upstream_binds_the_name_of_our_import(lab: Lab) -> None:
    output = stopped(lab, mutated(lab, TRAINER, "log = logging", "gh200 = None\nlog = logging"))
    assert "upstream binds gh200 here" in output and f"{TRAINER}:" in output


@pytest.mark.parametrize(
    "binding", ["def gh200(): ...", "import gh200", "for gh200 in (): pass", "f = lambda gh200: 0"]
)
def test_every_kind_of_binding_of_the_name_of_our_import(lab: Lab, binding: str) -> None:
    assert "upstream binds gh200 here" in stopped(
        lab, mutated(lab, TRAINER, "log = logging", f"{binding}\nlog = logging")
    )


def test_a_function_has_another_half_without_the_hook(lab: Lab) -> None:
    halves = "    if log:\n        def run(self):\n            return 0\n    else:\n"
    upstream = lab.upstream("v1")
    path = Path(upstream.removeprefix("path:")) / TRAINER
    text = path.read_text()
    start, end = text.index("    def run("), text.index("    def report(")
    body = "".join(f"    {line}" if line.strip() else line for line in text[start:end].splitlines(keepends=True))
    path.write_text(text[:start] + halves + body + text[end:])
    assert "run is defined in another branch here, and that one is not patched" in stopped(lab, upstream)


def test_a_store_in_an_inner_loop_after_the_hook(lab: Lab) -> None:
    path = lab.root / "patches/01-loop.toml"
    path.write_text(path.read_text().replace('why = "the pair is complete"', 'why = "x"\nlast_stored = ["pair"]', 1))
    lab.write_lock("v1")
    lab.run("check", "--upstream", lab.upstream("v1"))
    inner = "                self.seen.append(pair)\n            for pair in ():\n                pass\n"
    output = stopped(lab, mutated(lab, TRAINER, "                self.seen.append(pair)\n", inner))
    assert "MISPLACED 01/begin" in output and "pair is stored again here" in output


def test_a_patch_file_that_the_lock_knows_is_missing(lab: Lab) -> None:
    (lab.root / "patches/02-readers.toml").unlink()
    for command in (["check"], ["--skip-tests"]):
        output = lab.run(*command, "--upstream", lab.upstream("v1"), code=1)
        assert "patch 02: the lock knows it" in output and "retired" in output
    loop = lab.root / "patches/01-loop.toml"
    loop.write_text(loop.read_text().replace('risk = "high"', 'risk = "high"\nretired = [2]'))
    lab.run("check", "--upstream", lab.upstream("v1"))


def test_edits_that_only_work_together() -> None:
    tree = MemoryTree({FILE: b"def f():\n    a()\n    b()\n"})
    one = edit("before", "x()", "a()", "f", id="one", requires=("01/two",))
    two = edit("after", "y()", "b()", "f", id="two", only_if="g")
    result = resolve([patch(one, two)], tree).results[0]
    assert result.status == "failed" and "requires 01/two, which is skipped" in result.detail
    assert not resolve([patch(one, replace(two, only_if=""))], tree).failed


def test_required_edits_must_exist(lab: Lab) -> None:
    path = lab.root / "patches/01-loop.toml"
    path.write_text(path.read_text().replace('why = "adds our methods"', 'why = "x"\nrequires = ["gone"]'))
    assert "requires '01/gone', and there is no such edit" in lab.run("check", "--upstream", lab.upstream("v1"), code=4)


def test_an_only_if_that_appears_before_its_anchor(lab: Lab) -> None:
    """A commit between two releases adds the method, a later one its body: the edit is not needed yet."""
    added = "    def size(self, key):\n        raise NotImplementedError\n"
    upstream = lab.upstream("v1")
    path = Path(upstream.removeprefix("path:")) / LOCAL
    path.write_text(path.read_text().rstrip() + "\n\n" + added)
    output = lab.run("check", "--upstream", upstream)
    assert "01/size" in output and "the anchor is not (yet)" in output


def test_an_expectation_whose_only_if_appears_before_it() -> None:
    wanted = replace(patch(), expects=(Expect(FILE, "T.two", ("self",), "T.one", "ours", ("T.two",)),))
    both = MemoryTree({FILE: b"class T:\n    def one(self): ...\n    def two(self): ...\n"})
    first = MemoryTree({FILE: b"class T:\n    def one(self): ...\n"})
    for tree in (both, first):
        assert all(item.ok for item in check_interfaces([wanted], tree, MemoryTree({})))
    there, gone = (find_bodies([wanted], (), tree) for tree in (both, first))
    (drift,) = find_drift(build({"1.0": ("", observe("1.0", (), there))}), "2.0", (), gone)
    assert drift.level == REVIEW and "now it is missing" in drift.what


def test_propose_finds_a_renamed_callee_with_the_same_arguments(lab: Lab, tmp_path: Path) -> None:
    upstream = mutated(lab, TRAINER, "pair = self.fetch(number)", "pair = self.take(number)")
    path = Path(upstream.removeprefix("path:")) / TRAINER
    path.write_text(path.read_text().replace("def fetch(", "def take("))
    printed = tmp_path / "printed.json"
    verified = f"path:{ROOT / 'tests/fake_upstream/v1'}"
    lab.run("check", "--upstream", upstream, "--verified", verified, "--propose", "--json", str(printed), code=2)
    (first, *_) = json.loads(printed.read_text())["proposals"]["01/begin"]
    assert first["proved"] and first["variant"] == {"anchor": "pair = self.take(...)"}


def test_explain_says_first_what_is_wrong(lab: Lab) -> None:
    upstream = mutated(lab, TRAINER, "pair = self.fetch(number)  #", "couple = 1  #")
    output = lab.run("explain", "01", "--upstream", upstream, code=1)
    assert output.startswith("WRONG 01/begin: ") and "expected 1, found 0" in output.splitlines()[0]
    fine = lab.run("explain", "02", "--upstream", upstream, code=1)
    assert fine.startswith("02-readers")


def test_edits_that_bypass_or_wrap_a_function_declare_it() -> None:
    """Code of ours that returns from a function, or that a function's value passes through, stands for it."""
    undeclared = {
        form.key
        for item in Project(ROOT).patches
        for one in item.edits
        for form in one.forms()
        if form.scope and not form.stands_for and ("return" in form.code.split() or form.verb == "wrap")
    }
    # One expression of the longest function; its statement and the stores before it are watched.
    assert undeclared == {"01/window-gate"}
