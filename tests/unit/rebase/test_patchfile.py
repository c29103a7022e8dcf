"""Patch files: good ones load in commit order, bad ones are rejected with every problem at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_lab import FAKE

from gh200_rebase.errors import Rejected
from gh200_rebase.patches.patchfile import load_patches

HEAD = 'number = {number}\ntopic = "{topic}"\nsubject = "s"\nwhy = "w"\nrisk = "low"\n'
EDIT = '[[edit]]\nid = "a"\nfile = "x/y.py"\nverb = "before"\nanchor = "f(...)"\ncode = "g()"\nwhy = "w"\n'


def write(directory: Path, text: str, number: int = 1, topic: str = "thing", name: str = "") -> None:
    path = directory / (name or f"{number:02d}-{topic}.toml")
    path.write_text(HEAD.format(number=number, topic=topic) + text)


def rejection(directory: Path) -> str:
    with pytest.raises(Rejected) as caught:
        load_patches(directory)
    return str(caught.value)


def test_loads_in_commit_order() -> None:
    patches = load_patches(FAKE / "patches")
    assert [patch.name for patch in patches] == ["06-overlay", "01-loop", "02-readers", "07-notes"]
    assert patches[1].edits[0].key == "01/base"
    assert patches[0].files[0].target == "simpletuner/gh200"
    assert patches[1].expects[0].args == ("self", "number")


def test_variants_are_complete_forms(tmp_path: Path) -> None:
    write(
        tmp_path,
        EDIT + 'only_if = "C"\n[[edit.variant]]\nanchor = "h(...)"\ncode = """\n  i()\n  j()\n"""\ncount = 2\n',
    )
    (patch,) = load_patches(tmp_path)
    main, variant = patch.edits[0].forms()
    assert (main.anchor, variant.anchor, variant.code, variant.count) == ("f(...)", "h(...)", "i()\nj()", 2)
    assert (variant.file, variant.verb, variant.only_if) == (main.file, main.verb, "C")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("why", "whi", "unknown key 'whi'; did you mean 'why'?"),
        ("anchor", "ancor", "unknown key 'ancor'; did you mean 'anchor'?"),
        ('"before"', '"befour"', "verb 'befour' must be one of before, after"),
        ('"f(...)"', '"..."', "matches everything"),
        ('"f(...)"', '"if x"', "not Python"),
        ('"g()"', '"g("', "code is not Python"),
        ('"g()"', '"# nothing"', "code has no statement"),
        ('"x/y.py"', '"../y.py"', "must be a plain relative path"),
        ('"x/y.py"', '"/y.py"', "must be a plain relative path"),
        ('"a"', '"A b"', "id must be of the form"),
        ('id = "a"', 'id = "a"\ncount = 0', "count must be 1 or more"),
        ('id = "a"', 'id = "a"\nstands_for = ["C.f()"]', "stands_for: 'C.f()' is not a dotted name"),
        ('id = "a"', 'id = "a"\nstands_for = [1]', "stands_for must be a list of strings"),
        ('id = "a"', 'id = "a"\ncount = true', "count must be of type int"),
        ('id = "a"', 'id = "a"\ncount = "1"', "count must be of type int"),
        ('id = "a"', 'id = "a"\nscope = "A..b"', "is not a dotted name"),
        ('id = "a"', 'id = "a"\nonly_if = "a b"', "neither a dotted name nor exists:PATH"),
        ('id = "a"', "", "key 'id' is missing"),
        ('"w"\n', '""\n', "why is empty"),
        ('anchor = "f(...)"', "", "before needs an anchor"),
        ('"before"', '"wrap"', "__upstream__ exactly once, has it 0 times"),
        ('verb = "before"\nanchor = "f(...)"', 'verb = "wrap"\nanchor = "x = 1"', "an anchor that is an expression"),
        ('verb = "before"', 'verb = "append"', "append needs an anchor that is a dict"),
        ('verb = "before"', 'verb = "base"', "base needs a scope"),
        ('verb = "before"', 'verb = "base"', "base takes no anchor"),
        ('verb = "before"', 'verb = "import"', "verb 'import' must be one of before, after"),
    ],
)
def test_rejects_bad_edits(tmp_path: Path, old: str, new: str, reason: str) -> None:
    assert old in EDIT
    write(tmp_path, EDIT.replace(old, new, 1))
    message = rejection(tmp_path)
    assert reason in message
    assert "01-thing.toml" in message


def test_lists_every_problem_of_every_file(tmp_path: Path) -> None:
    write(tmp_path, EDIT.replace("f(...)", "...") + EDIT.replace("why", "whi"))
    write(tmp_path, EDIT.replace("g()", "g("), number=2)
    message = rejection(tmp_path)
    assert all(text in message for text in ("matches everything", "'whi'", "02-thing.toml: edit a: code is not Python"))
    assert "fix:" in message


def test_rejects_a_reused_number(tmp_path: Path) -> None:
    write(tmp_path, EDIT, topic="one")
    write(tmp_path, EDIT, topic="two")
    assert "number 1 is used by 01-one.toml, 01-two.toml" in rejection(tmp_path)


def test_rejects_a_reused_id(tmp_path: Path) -> None:
    write(tmp_path, EDIT + EDIT)
    assert "edit id 'a' is used 2 times" in rejection(tmp_path)


def test_rejects_a_name_that_does_not_fit(tmp_path: Path) -> None:
    write(tmp_path, EDIT, name="02-thing.toml")
    assert "must be called NN-topic.toml, from number 1 and topic 'thing'" in rejection(tmp_path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('commit = "second"\n', "commit 'second' must be one of first, normal, last"),
        ("[[files]]\n", "key 'from' is missing"),
        ('[[files]]\nfrom = "a/../b"\n', "must be a plain relative path"),
        ('[[files]]\nfrom = "a"\nexclude = [1]\n', "exclude must be a list of strings"),
        ('[[expect]]\nfile = "a.py"\nname = "a b"\n', "is not a dotted name"),
        ('edit = "x"\n', "edit must be of type list"),
        ("edit = [1]\n", "must be a table"),
        ("broken\n", "cannot be read"),
        ('imports = "x = 1"\n', "must be imports of one name each"),
        ('imports = "from a import b, c"\n', "must be imports of one name each"),
        ('imports = "import"\n', "imports: not Python"),
        ('imports = "from a import b"\n' + EDIT, "no edit of this patch uses 'from a import b'"),
    ],
)
def test_rejects_bad_tables(tmp_path: Path, text: str, reason: str) -> None:
    write(tmp_path, text)
    assert reason in rejection(tmp_path)


def test_rejects_an_empty_directory(tmp_path: Path) -> None:
    assert "no patch file" in rejection(tmp_path)


def test_rejects_bytes_that_are_not_text(tmp_path: Path) -> None:
    (tmp_path / "01-a.toml").write_bytes(b"\xff\xfe")
    assert "01-a.toml: cannot be read" in rejection(tmp_path)
