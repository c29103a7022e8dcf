"""Proofs hold for good edits, and each of them fails for the mistake it is there for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_lab import FAKE, FILE, edit, fake, patch, proofs_of

from gh200_rebase.engine.resolve import Plan, resolve
from gh200_rebase.patches.patchfile import Edit, load_patches
from gh200_rebase.proofs.prove import PROOFS, prove
from gh200_rebase.syntax.splice import compose
from gh200_rebase.syntax.tree import DirectoryTree, MemoryTree

LAZY = b"""
_EXPORTS = {"lazy": ".hooks", "hook": ("simpletuner.gh200.hooks", "hook")}
__all__ = ["said"]
"""
HOOKS = b"""
class Base:
    def begin(self, pair, *, number=0): ...
    @staticmethod
    def still(a): ...

class Made:
    def __init__(self, one): ...

def hook(value, *, kind="x"): ...
def more(*args, **kwargs): ...
answer = 42
"""
OVERLAY = MemoryTree(
    {
        "simpletuner/gh200/__init__.py": LAZY,
        "simpletuner/gh200/hooks.py": HOOKS,
    }
)
IMPORT = edit("import", "from simpletuner.gh200 import hooks as gh200", id="import")


def failures(text: str, *edits: Edit, file: str = FILE) -> dict[str, str]:
    """Failed proofs by name, for edits that must all land."""
    tree = MemoryTree({file: text.encode()})
    plan = resolve([patch(*edits)], tree)
    assert not plan.failed, plan.failed[0].detail
    found = proofs_of(plan, tree, *edits, overlay=OVERLAY)
    assert len(found) == len(PROOFS) * len(edits)
    return {f"{proof.edit_key} {proof.name}": proof.detail for proof in found if not proof.ok}


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_all_hold_on_the_fake_upstream(version: str) -> None:
    patches, tree = load_patches(FAKE / "patches"), fake(version)
    plan = resolve(patches, tree)
    proofs = prove(patches, tree, plan, DirectoryTree(FAKE / "overlay"))
    assert [proof for proof in proofs if not proof.ok] == []
    assert len(proofs) == len(PROOFS) * len(plan.applied)


def tampered(plan: Plan, data: bytes, text: bytes) -> Plan:
    """The same plan with other bytes inserted, as a faulty placer would have made it."""
    splices = tuple(replace(item, piece=replace(item.piece, data=data)) for item in plan.splices[FILE])
    return replace(plan, splices={FILE: splices}, final={FILE: compose(text, splices)[0]})


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"x = ", {"tree", "again"}),
        (b"other()\n", {"tree", "again"}),
        (b"if ours():\n ", {"tree", "again"}),
        (b"ours(\n", {"tree", "again", "compiles", "names", "calls"}),
    ],
)
def test_wrong_insertion_is_caught(data: bytes, expected: set[str]) -> None:
    text = b"import ours\na()\n"
    change = edit("before", "ours()", "a()")
    tree = MemoryTree({FILE: text})
    plan = tampered(resolve([patch(change)], tree), data, text)
    failed = {proof.name for proof in proofs_of(plan, tree, change) if not proof.ok}
    assert failed - {"names"} == expected - {"names"}


def test_changed_upstream_byte_is_caught() -> None:
    tree = MemoryTree({FILE: b"a()\nb()  # note\n"})
    change = edit("before", "ours()", "a()")
    plan = resolve([patch(change)], tree)
    plan = replace(plan, final={FILE: plan.final[FILE].replace(b"note", b"nota")})
    assert [proof.name for proof in proofs_of(plan, tree, change) if not proof.ok and proof.name != "names"] == [
        "bytes"
    ]


def test_only_the_guilty_edit_fails() -> None:
    text = b"import ours, more\na()\nb()\n"
    edits = (edit("before", "ours()", "a()", id="good"), edit("before", "more()", "b()", id="bad"))
    tree = MemoryTree({FILE: text})
    plan = resolve([patch(*edits)], tree)
    good, bad = plan.splices[FILE]
    splices = (good, replace(bad, piece=replace(bad.piece, data=b"x = ")))
    plan = replace(plan, splices={FILE: splices}, final={FILE: compose(text, splices)[0]})
    assert {proof.edit_key for proof in proofs_of(plan, tree, *edits) if not proof.ok} == {"01/bad"}


FUNCTION = (
    "import m\n\ndef f(p, *q, k=1, **r):\n    early = 1\n    a()\n    late = 1\n    for i in p: pass\n\ndef a(): ...\n"
)


@pytest.mark.parametrize("name", ["p", "q", "k", "r", "early", "m", "f", "a", "len", "__file__"])
def test_names_with_a_value(name: str) -> None:
    assert failures(FUNCTION, edit("after", f"print({name})", "a()", "f")) == {}


@pytest.mark.parametrize("name", ["late", "i", "nowhere"])
def test_names_without_a_value(name: str) -> None:
    failed = failures(FUNCTION, edit("after", f"print({name})", "a()", "f"))
    assert set(failed) == {"01/edit names"}
    assert f"no value yet for {name}" in failed["01/edit names"]


@pytest.mark.parametrize(
    ("text", "change", "missing"),
    [
        ("def f():\n    x = g()\n\ndef g(): ...\n", edit("after", "print(x)", "x = ...", "f"), ""),
        ("def f():\n    x = g()\n\ndef g(): ...\n", edit("before", "print(x)", "x = ...", "f"), "x"),
        ("def f():\n    x = g()\n\ndef g(): ...\n", edit("wrap", "max(__upstream__, x)", "g()", "f"), "x"),
        ("def f(x):\n    x = g()\n\ndef g(): ...\n", edit("wrap", "max(__upstream__, x)", "g()", "f"), ""),
        ("def f():\n    for i in g():\n        a()\na = g = print\n", edit("after", "print(i)", "a()", "f"), ""),
        ("def f():\n    with g() as w:\n        a()\na = g = print\n", edit("after", "print(w)", "a()", "f"), ""),
        ("def f():\n    y = [z for z in '']\n    a()\na = print\n", edit("after", "print(z)", "a()", "f"), "z"),
        ("def f():\n    def g():\n        a()\n    v = 1\na = print\n", edit("after", "print(v)", "a()", "f.g"), ""),
        ("a = print\na()\nv = 1\n", edit("after", "print(v)", "a()"), "v"),
        ("class C:\n    v = 1\n    print()\n", edit("after", "print(v)", "print()", "C"), ""),
        ("class C: pass\nB = int\n", edit("base", "B", scope="C"), "B"),
        ("B = int\nclass C: pass\n", edit("base", "B", scope="C"), ""),
        ("a = print\na()\n", edit("after", "x = [y for y in '']\nprint(x)", "a()"), ""),
        ("a = print\na()\n", edit("after", "x = x", "a()"), "x"),
        ("a = print\na()\n", edit("after", "for n in '': print(n)", "a()"), ""),
        ("from m import *\na()\n", edit("after", "print(anything)", "a()"), ""),
    ],
)
def test_names_by_place(text: str, change: Edit, missing: str) -> None:
    failed = failures(text, change)
    assert bool(failed) == bool(missing)
    assert missing in failed.get("01/edit names", "")


def test_undefined_names_of_upstream_are_not_ours() -> None:
    assert failures("def f():\n    never_defined()\n    f()\n", edit("after", "print()", "f()", "f")) == {}


def test_hidden_builtin_is_seen_by_pyflakes() -> None:
    """Our assignment makes `print` local to the function, also for upstream's line above it."""
    failed = failures("def f():\n    print(1)\n    f()\n", edit("after", "print = 3", "f()", "f"))
    assert set(failed) == {"01/edit names"}


@pytest.mark.parametrize(
    "code",
    [
        "gh200.hook(1)",
        "gh200.hook(1, kind='y')",
        "gh200.hook(value=1)",
        "gh200.hook(*[1, 2, 3])",
        "gh200.more(1, 2, z=3)",
        "gh200.Made(1)",
        "gh200.Base.still(1)",
        "print(gh200.answer)",
        "from simpletuner.gh200 import lazy, said, hook\nhook(1)",
        "import simpletuner.gh200.hooks\nsimpletuner.gh200.hooks.hook(1)",
        "from simpletuner.gh200.hooks import hook as h\nh(1)",
    ],
)
def test_calls_that_fit(code: str) -> None:
    assert failures("a = print\na()\n", IMPORT, edit("after", code, "a()")) == {}


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("gh200.hok(1)", "hok does not exist"),
        ("gh200.hook()", "lacks an argument for value"),
        ("gh200.hook(1, 2)", "takes 1 positional argument(s), 2 given"),
        ("gh200.hook(1, kin=2)", "has no parameter kin"),
        ("gh200.hook(1, value=2)", "gets value twice"),
        ("gh200.Made()", "lacks an argument for one"),
        ("gh200.Base(1)", "takes 0 positional"),
        ("gh200.Base.nothing()", "nothing does not exist"),
        ("print(gh200.nothing)", "nothing does not exist"),
        ("from simpletuner.gh200 import nothing", "simpletuner.gh200 has no nothing"),
        ("import simpletuner.gh200.nothing", "no module simpletuner.gh200.nothing"),
        ("from simpletuner.gh200 import hook\nhook()", "lacks an argument for value"),
    ],
)
def test_calls_that_do_not_fit(code: str, reason: str) -> None:
    failed = failures("a = print\na()\n", IMPORT, edit("after", code, "a()"))
    assert set(failed) == {"01/edit calls"}
    assert reason in failed["01/edit calls"]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("self.begin(1, number=2)", ""),
        ("self.upstreams()", ""),
        ("self.still(1)", ""),
        ("self.begun(1)", "neither in C nor in the base class"),
        ("self.begin()", "lacks an argument for pair"),
    ],
)
def test_methods_of_our_base_class(code: str, reason: str) -> None:
    text = "class C:\n    def f(self):\n        a()\n    def upstreams(self): ...\na = print\n"
    failed = failures(text, IMPORT, edit("base", "gh200.Base", scope="C", id="base"), edit("after", code, "a()", "C.f"))
    assert reason in failed.get("01/edit calls", "")
    assert bool(failed) == bool(reason)


def test_relative_imports_are_looked_up_beside_the_file() -> None:
    good = edit("import", "from .hooks import hook", file="simpletuner/gh200/other.py")
    bad = edit("import", "from .hook import hook", file="simpletuner/gh200/other.py")
    assert failures("x = 1\n", good, file="simpletuner/gh200/other.py") == {}
    assert (
        "no module simpletuner.gh200.hook"
        in failures("x = 1\n", bad, file="simpletuner/gh200/other.py")["01/edit calls"]
    )


def test_nothing_is_executed() -> None:
    text = "raise SystemExit('upstream ran')\na()\n"
    tree = MemoryTree({FILE: text.encode()})
    change = edit("after", "raise SystemExit('ours ran')", "a()")
    plan = resolve([patch(change)], tree)
    overlay = MemoryTree({"simpletuner/gh200/__init__.py": b"raise SystemExit('overlay ran')"})
    assert prove([patch(change)], tree, plan, overlay)
