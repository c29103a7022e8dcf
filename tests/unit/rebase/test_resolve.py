"""Edits land where they should, byte for byte, in every shape of file; where they cannot, the reason says all."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest
from engine_lab import FAKE, FILE, applied, edit, fake, only, patch, plan_for
from hypothesis import given, settings
from hypothesis import strategies as st

from gh200_rebase.engine.resolve import resolve
from gh200_rebase.patches.patchfile import load_patches
from gh200_rebase.syntax.tree import ChangedTree, DirectoryTree, MemoryTree

AFTER = edit("after", "ours()", "a()")
BEFORE = edit("before", "ours()", "a()")
TWO_LINES = edit("after", "if x:\n    ours()", "a()")


# Where the text lands: (file before, edit, file after)
LANDINGS = {
    "after": ("a()\nb()\n", AFTER, "a()\nours()\nb()\n"),
    "before": ("b()\na()\n", BEFORE, "b()\nours()\na()\n"),
    "crlf": ("a()\r\nb()\r\n", AFTER, "a()\r\nours()\r\nb()\r\n"),
    "crlf_two_lines": ("a()\r\nb()\r\n", TWO_LINES, "a()\r\nif x:\r\n    ours()\r\nb()\r\n"),
    "mixed_ends_follow_the_anchor": ("b()\na()\r\nc()\n", AFTER, "b()\na()\r\nours()\r\nc()\n"),
    "lone_cr": ("a()\rb()\r", AFTER, "a()\rours()\rb()\r"),
    "bom": ("\ufeffa()\n", BEFORE, "\ufeffours()\na()\n"),
    "tabs": ("if x:\n\ta()\n\tb()\n", AFTER, "if x:\n\ta()\n\tours()\n\tb()\n"),
    "tabs_two_lines": ("if x:\n\ta()\n", TWO_LINES, "if x:\n\ta()\n\tif x:\n\t    ours()\n"),
    "comment_stays": ("a()  # note\nb()\n", AFTER, "a()  # note\nours()\nb()\n"),
    "missing_final_newline_after": ("a()", AFTER, "a()\nours()"),
    "missing_final_newline_before": ("a()", BEFORE, "ours()\na()"),
    "missing_final_newline_crlf": ("b()\r\na()", AFTER, "b()\r\na()\r\nours()"),
    "missing_final_newline_nested": ("if x:\n  a()  # n", AFTER, "if x:\n  a()  # n\n  ours()"),
    "one_line_suite_after": ("if x: a()\n", AFTER, "if x: a(); ours()\n"),
    "one_line_suite_before": ("if x: a()\n", BEFORE, "if x: ours(); a()\n"),
    "one_line_suite_comment": ("if x: a()  # n\n", AFTER, "if x: a(); ours()  # n\n"),
    "one_line_suite_second": ("if x: b(); a()\ne()\n", AFTER, "if x: b(); a(); ours()\ne()\n"),
    "one_line_else": ("if x: b()\nelse: a()\n", AFTER, "if x: b()\nelse: a(); ours()\n"),
    "one_line_def": ("def f(): a()\n", edit("after", "ours()", "a()", "f"), "def f(): a(); ours()\n"),
    "semicolon_first_after": ("a(); b()\n", AFTER, "a(); ours(); b()\n"),
    "semicolon_first_before": ("a(); b()\n", BEFORE, "ours()\na(); b()\n"),
    "semicolon_last_after": ("b(); a()\n", AFTER, "b(); a()\nours()\n"),
    "semicolon_last_before": ("b(); a()\n", BEFORE, "b(); ours(); a()\n"),
    "semicolon_trailing": ("a();\nb()\n", AFTER, "a();\nours()\nb()\n"),
    "semicolon_trailing_in_suite": ("if x: a();\n", AFTER, "if x: a(); ours();\n"),
    "semicolon_two_statements": ("a(); b()\n", edit("after", "o()\np()", "a()"), "a(); o(); p(); b()\n"),
    "string_looks_like_anchor": ("x = '''\na()\n'''  # a()\na()\n", AFTER, "x = '''\na()\n'''  # a()\na()\nours()\n"),
    "multi_line_statement": (
        "x = f(\n  1,  # n\n)  # end\n",
        edit("after", "ours()", "x = f(...)"),
        "x = f(\n  1,  # n\n)  # end\nours()\n",
    ),
    "backslash": ("x = \\\n  a()\n", edit("after", "ours()", "x = ..."), "x = \\\n  a()\nours()\n"),
    "backslash_after_semicolon": ("b(); \\\na()\nc()\n", AFTER, "b(); \\\na()\nours()\nc()\n"),
    "backslash_before_first_token": ("if x:\n    \\\na()\n", BEFORE, "if x:\n    ours()\n    \\\na()\n"),
    "form_feed": ("b()\n\f\nif x:\n\f  a()\n", AFTER, "b()\n\f\nif x:\n\f  a()\n  ours()\n"),
    "compound_after": ("if x:\n  b()\n\nc()\n", edit("after", "ours()", "if x: ..."), "if x:\n  b()\nours()\n\nc()\n"),
    "decorated_before": (
        "@d(1)\n@(e)\ndef f(): pass\n",
        edit("before", "ours()", "def f(): ..."),
        "ours()\n@d(1)\n@(e)\ndef f(): pass\n",
    ),
    "decorated_async_method": (
        "class C:\n  @d\n  async def f(self):\n    await a()\n",
        edit("after", "ours()", "a()", "C.f"),
        "class C:\n  @d\n  async def f(self):\n    await a()\n    ours()\n",
    ),
    "def_inside_if": (
        "if x:\n  def f():\n    a()\n",
        edit("after", "ours()", "a()", "f"),
        "if x:\n  def f():\n    a()\n    ours()\n",
    ),
    "header_expression_means_the_statement": ("while a():\n  b()\n", BEFORE, "ours()\nwhile a():\n  b()\n"),
    "string_with_lines_is_not_indented": (
        "if x:\n    a()\n",
        edit("after", 'ours("""1\n2""")', "a()"),
        'if x:\n    a()\n    ours("""1\n2""")\n',
    ),
    "wrap": ("x = f(y) + 1\n", edit("wrap", "g(__upstream__)", "f(...)"), "x = g(f(y)) + 1\n"),
    "wrap_keeps_every_byte": (
        "x = f( y, # n\n  z)\n",
        edit("wrap", "g(__upstream__)", "f(...)"),
        "x = g(f( y, # n\n  z))\n",
    ),
    "wrap_an_operand": ("x = a + b\n", edit("wrap", "g(__upstream__).h", "a + b"), "x = g(a + b).h\n"),
    "wrap_in_an_operator": ("x = a or b\n", edit("wrap", "not __upstream__", "a or b"), "x = (not (a or b))\n"),
    "wrap_at_the_end": ("x = f()\n", edit("wrap", "(g or __upstream__)", "f()"), "x = (g or f())\n"),
    "wrap_a_bare_tuple": ("x = 1, 2\n", edit("wrap", "g(__upstream__)", "(1, ...)"), "x = g((1, 2))\n"),
    "wrap_keyword_value": ("h(k=f())\n", edit("wrap", "g(__upstream__, 1)", "f()"), "h(k=g(f(), 1))\n"),
    "wrap_in_f_string": ("x = f'{f(1)}'\n", edit("wrap", "g(__upstream__)", "f(1)"), "x = f'{g(f(1))}'\n"),
    "wrap_with_item": ("with f() as y: pass\n", edit("wrap", "g(__upstream__)", "f()"), "with g(f()) as y: pass\n"),
    "base_none": ("class C:\n  x = 1\n", edit("base", "m.B", scope="C"), "class C(m.B):\n  x = 1\n"),
    "base_empty": ("class C():\n  x = 1\n", edit("base", "B", scope="C"), "class C(B):\n  x = 1\n"),
    "base_first": (
        "class C(A, metaclass=M): pass\n",
        edit("base", "B", scope="C"),
        "class C(B, A, metaclass=M): pass\n",
    ),
    "base_keyword": ("class C(metaclass=M): pass\n", edit("base", "B", scope="C"), "class C(B, metaclass=M): pass\n"),
    "base_lines": (
        "@d\nclass C(  # n\n    A,\n): pass\n",
        edit("base", "B", scope="C"),
        "@d\nclass C(  # n\n    B, A,\n): pass\n",
    ),
    "base_generic": (
        "class C[T: (int, str)]: pass\n",
        edit("base", "B", scope="C"),
        "class C[T: (int, str)](B): pass\n",
    ),
    "append_lines": (
        "x = {\n  'a': 1,  # n\n}\n",
        edit("append", "'b': 2", "x = {...}"),
        "x = {\n  'a': 1,  # n\n  'b': 2,\n}\n",
    ),
    "append_lines_no_comma": ("x = [\n  (1)  # n\n]\n", edit("append", "2", "[...]"), "x = [\n  (1),  # n\n  2,\n]\n"),
    "append_inline": ("x = [1, 2]\n", edit("append", "3", "[...]"), "x = [1, 2, 3]\n"),
    "append_inline_comma": ("x = {1, }\n", edit("append", "3", "{...}"), "x = {1, 3, }\n"),
    "append_empty": ("x = {}\n", edit("append", "'a': 1", "{...}"), "x = {'a': 1}\n"),
    "append_empty_tuple": ("x = ()\n", edit("append", "1", "x = ..."), "x = (1,)\n"),
    "append_bare_tuple": ("x = (1), (2)\n", edit("append", "3", "x = ..."), "x = (1), (2), 3\n"),
    "append_one_tuple": ("x = (1,)\n", edit("append", "2", "x = ..."), "x = (1, 2,)\n"),
    "import_after_imports": (
        "'''d'''\nimport a\nx = 1\nfrom b import (\n  c,\n)\n\ny = 2\n",
        edit("import", "import o"),
        "'''d'''\nimport a\nx = 1\nfrom b import (\n  c,\n)\nimport o\n\ny = 2\n",
    ),
    "import_not_into_try": (
        "try:\n  import a\nexcept E:\n  pass\n",
        edit("import", "import o"),
        "import o\ntry:\n  import a\nexcept E:\n  pass\n",
    ),
    "import_after_future": (
        "# c\nfrom __future__ import annotations\nif x:\n  import a\n",
        edit("import", "import o"),
        "# c\nfrom __future__ import annotations\nimport o\nif x:\n  import a\n",
    ),
    "import_after_docstring": (
        '"""d"""\n\ndef f(): pass\n',
        edit("import", "import o"),
        '"""d"""\nimport o\n\ndef f(): pass\n',
    ),
    "import_before_code": ("#!/bin/x\nx = 1\n", edit("import", "import o"), "#!/bin/x\nimport o\nx = 1\n"),
    "import_into_empty_file": ("", edit("import", "import o"), "import o\n"),
    "import_into_comments": ("# c", edit("import", "import o"), "# c\nimport o"),
}


@pytest.mark.parametrize("name", LANDINGS)
def test_lands(name: str) -> None:
    before, change, after = LANDINGS[name]
    assert applied(before, change).decode() == after


def test_latin_1_cookie() -> None:
    before = "# -*- coding: latin-1 -*-\nx = 'é'; a('ü')  # ö\n".encode("latin-1")
    after = applied(before, edit("wrap", "g(__upstream__, 'ä')", "a(...)"))
    assert after == "# -*- coding: latin-1 -*-\nx = 'é'; g(a('ü'), 'ä')  # ö\n".encode("latin-1")


def test_utf_8_columns_count_bytes() -> None:
    assert applied("x = 'é→𝄞'; a()\n", BEFORE).decode() == "x = 'é→𝄞'; ours(); a()\n"


def test_code_the_encoding_cannot_hold_fails() -> None:
    result = only(plan_for("# coding: latin-1\na()\n".encode("latin-1"), edit("after", "o('→')", "a()")))
    assert result.status == "failed"
    assert "does not fit the file's encoding iso-8859-1" in result.detail


@pytest.mark.parametrize(
    "data", [b"a()\xff\n", b"# coding: nothing\na()\n", b"a(\n", b"a()\0\n", b"\xef\xbb\xbf# coding: latin-1\na()\n"]
)
def test_junk_is_a_result_with_its_reason(data: bytes) -> None:
    result = only(plan_for(data, AFTER))
    assert result.status == "failed"
    assert f"{FILE}: cannot be read as Python" in result.detail


@pytest.mark.parametrize(
    ("text", "change", "reason"),
    [
        ("if x: a()\n", TWO_LINES, "only simple statements"),
        ("a(); b()\n", TWO_LINES, "only simple statements"),
        ("if x: pass\nelif a(): pass\n", BEFORE, "an `elif`"),
        ("x = g(y for y in z)\n", edit("wrap", "f(__upstream__)", "(y for y in z)"), "generator expression"),
        ("x = [1]\n", edit("append", "'a': 1", "[...]"), "is a list"),
    ],
)
def test_places_that_cannot_hold_our_code_fail(text: str, change: object, reason: str) -> None:
    result = only(plan_for(text, change))  # type: ignore[arg-type]
    assert result.status == "failed"
    assert reason in result.detail


def test_assignment_targets_are_not_wrapped() -> None:
    assert applied("x.y = x.y\n", edit("wrap", "g(__upstream__)", "x.y")) == b"x.y = g(x.y)\n"


def test_duplicate_definitions_are_counted_together() -> None:
    text = "def f():\n  a()\ndef f():\n  a()\n"
    one = only(plan_for(text, edit("after", "ours()", "a()", "f")))
    assert "expected 1, found 2 (line 2, 4)" in one.detail
    both = applied(text, edit("after", "ours()", "a()", "f", count=2))
    assert both == b"def f():\n  a()\n  ours()\ndef f():\n  a()\n  ours()\n"


def test_duplicate_definition_with_one_hit() -> None:
    assert applied("def f(): pass\ndef f():\n  a()\n", edit("after", "ours()", "a()", "f")).count(b"ours") == 1


def test_anchor_that_appears_twice_names_both_lines() -> None:
    change = edit("before", "ours()", "self.report(...)", "Loop.run", file="simpletuner/helpers/training/trainer.py")
    assert only(resolve([patch(change)], fake("v1"))).status == "applied"
    result = only(resolve([patch(change)], fake("v2")))
    assert result.status == "failed"
    expected = "trainer.py: scope Loop.run: `self.report(...)`: expected 1, found 2 (line 26, 35)"
    assert expected in result.detail
    assert [hit.line for hit in result.hits] == [26, 35]


def test_a_patchs_import_reaches_each_file_that_uses_its_name_once() -> None:
    uses = [edit("after", "gh200.f()", "a()", id=name, file=name) for name in ("one.py", "two.py")]
    again = edit("before", "gh200.g()", "a()", id="again", file="one.py")
    plain = edit("after", "g()", "a()", id="plain", file="three.py")
    first = replace(patch(*uses, again, plain), imports=("import x as gh200", "import y as unused"))
    later = replace(patch(edit("after", "gh200.h()", "b()", patch=2, file="one.py"), number=2), imports=first.imports)
    tree = MemoryTree(dict.fromkeys(("one.py", "two.py", "three.py"), b"import o\na()\nb()\n"))
    plan = resolve([first, later], tree)
    assert not plan.failed
    assert plan.final["one.py"] == b"import o\nimport x as gh200\ngh200.g()\na()\ngh200.f()\nb()\ngh200.h()\n"
    assert plan.final["two.py"] == b"import o\nimport x as gh200\na()\ngh200.f()\nb()\n"
    assert plan.final["three.py"] == b"import o\na()\ng()\nb()\n"
    again_plan = resolve([first, later], ChangedTree(tree, plan.final))
    assert {result.status for result in again_plan.results} == {"already"}


def test_a_patchs_import_follows_an_edit_to_the_file_of_its_variant() -> None:
    main = edit("after", "gh200.f()", "a()", file="new.py")
    moved = replace(main, variants=(replace(main, file="old.py"),))
    plan = resolve([replace(patch(moved), imports=("import x as gh200",))], MemoryTree({"old.py": b"a()\n"}))
    assert plan.final == {"old.py": b"import x as gh200\na()\ngh200.f()\n"}


def test_renamed_method_takes_the_variant() -> None:
    patches = load_patches(FAKE / "patches")
    used = {
        version: {r.edit.key: r.variant for r in resolve(patches, fake(version)).results} for version in ("v1", "v2")
    }
    assert (used["v1"]["01/begin"], used["v2"]["01/begin"]) == (0, 1)


def test_renamed_method_without_variant_names_the_nearest_statements() -> None:
    change = edit("after", "o()", "pair = self.fetch(...)", "Loop.run", file="simpletuner/helpers/training/trainer.py")
    detail = only(resolve([patch(change)], fake("v2"))).detail
    assert "expected 1, found 0; nearest:" in detail
    assert "trainer.py:29: pair = self.next_pair(number)" in detail
    assert len(detail.splitlines()) == 4


def test_renamed_scope_names_the_nearest_scopes() -> None:
    change = edit("after", "o()", "return ...", "Loop.next_pairs", file="simpletuner/helpers/training/trainer.py")
    assert "nearest: Loop.next_pair (line 21)" in only(resolve([patch(change)], fake("v2"))).detail


def test_missing_file_names_the_nearest_paths() -> None:
    change = edit("after", "o()", "a()", file="simpletuner/training/trainer.py")
    detail = only(resolve([patch(change)], fake("v1"))).detail
    assert "no such file in this upstream; nearest: simpletuner/helpers/training/trainer.py" in detail


def test_moved_block_changes_the_chain_and_nothing_more_serious() -> None:
    change = edit("after", "o()", "pair = ...", "Loop.run", file="simpletuner/helpers/training/trainer.py")
    one, two = (only(resolve([patch(change)], fake(version))).fingerprint for version in ("v1", "v2"))
    assert one and two
    assert one.chain != two.chain
    assert one.hits == two.hits == 1


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ("def f():\n  x()\n  a()\n  y()\n  z()\n", {"hits", "chain", "anchor", "neighbours"}),
        ("def f():\n  w()\n  a()\n  y()\n", {"hits", "chain", "anchor"}),
        ("def f():\n  if q:\n    x()\n    a()\n    y()\n", {"hits", "anchor", "neighbours"}),
        ("# comment\ndef f():\n\n  x()\n  a( ) # b\n  y()\n", {"hits", "chain", "anchor", "neighbours", "scope"}),
    ],
)
def test_fingerprint_says_what_changed(other: str, same: set[str]) -> None:
    change = edit("after", "ours()", "a()", "f")
    before, after = (only(plan_for(text, change)).fingerprint for text in ("def f():\n  x()\n  a()\n  y()\n", other))
    names = ("hits", "chain", "anchor", "neighbours", "scope")
    assert {name for name in names if getattr(before, name) == getattr(after, name)} == same


def test_fingerprint_is_the_same_on_every_python() -> None:
    mark = only(
        plan_for("def f(x, *, y=[]):\n  if x:\n    a(y)\n    return\n", edit("after", "o()", "a(...)", "f"))
    ).fingerprint
    assert mark is not None
    assert (mark.chain, mark.scope) == ("ed0d093078c4c689", "0208c27910e589bf")


def test_only_if_skips_with_a_reason() -> None:
    results = {r.edit.key: r for r in resolve(load_patches(FAKE / "patches"), fake("v1")).results}
    assert results["01/size"].status == "skipped"
    assert "LocalDirectory.size is not in this upstream" in results["01/size"].detail
    assert {r.edit.key: r for r in resolve(load_patches(FAKE / "patches"), fake("v2")).results}[
        "01/size"
    ].status == "applied"


@pytest.mark.parametrize(("condition", "status"), [("exists:other.py", "skipped"), (f"exists:{FILE}", "applied")])
def test_only_if_a_file_exists(condition: str, status: str) -> None:
    assert only(plan_for("a()\n", edit("after", "o()", "a()", only_if=condition))).status == status


def test_two_edits_at_one_place_keep_commit_order() -> None:
    first, second = (edit("after", f"o{n}()", "a()", id=f"n{n}") for n in (1, 2))
    assert applied("a()\nb()\n", first, second) == b"a()\no1()\no2()\nb()\n"
    third = edit("before", "o3()", "b()", id="n3")
    assert applied("a()\nb()\n", third, first) == b"a()\no3()\no1()\nb()\n"


def test_deeper_code_stays_in_its_block() -> None:
    inner = edit("after", "inner()", "a()", id="inner")
    outer = edit("before", "outer()", "b()", id="outer")
    whole = edit("after", "whole()", "if x: ...", id="whole")
    assert applied("if x:\n  a()\nb()\n", outer, whole, inner) == b"if x:\n  a()\n  inner()\nouter()\nwhole()\nb()\n"


def test_several_edits_of_one_line_combine() -> None:
    edits = [
        edit("before", "o1()", "a()", id="n1"),
        edit("after", "o2()", "a()", id="n2"),
        edit("wrap", "w(__upstream__)", "a()", id="n3"),
    ]
    assert applied("if x: a()\n", *edits) == b"if x: o1(); w(a()); o2()\n"


def test_two_appends_share_one_comma() -> None:
    edits = [edit("append", str(n), "[...]", id=f"n{n}") for n in (2, 3)]
    assert applied("x = [\n  1\n]\n", *edits) == b"x = [\n  1,\n  2,\n  3,\n]\n"


@pytest.mark.parametrize(
    ("text", "edits"),
    [
        (
            "x = f(g(1))\n",
            [edit("wrap", "o(__upstream__)", "f(...)", id="n1"), edit("wrap", "p(__upstream__)", "g(...)", id="n2")],
        ),
        (
            "x = f(1)\n",
            [edit("wrap", "o(__upstream__)", "f(...)", id="n1"), edit("wrap", "p(__upstream__)", "f(1)", id="n2")],
        ),
        ("x = f([1])\n", [edit("wrap", "o(__upstream__)", "f(...)", id="n1"), edit("append", "2", "[...]", id="n2")]),
        ("class C: pass\n", [edit("base", "A", scope="C", id="n1"), edit("base", "B", scope="C", id="n2")]),
    ],
)
def test_overlapping_edits_fail_and_name_each_other(text: str, edits: list) -> None:
    plan = plan_for(text, *edits)
    assert [result.status for result in plan.results] == ["failed", "failed"]
    assert all("01/n1 and 01/n2 overlap" in result.detail for result in plan.results)
    assert not plan.final.get(FILE) or plan.final[FILE] == text.encode()


def test_contents_are_cumulative_per_patch() -> None:
    one = patch(edit("after", "o1()", "a()"), number=1)
    two = patch(edit("after", "o2()", "b()", patch=2), number=2)
    plan = resolve([one, two], MemoryTree({FILE: b"a()\nb()\n"}))
    assert plan.contents[1][FILE] == b"a()\no1()\nb()\n"
    assert plan.contents[2][FILE] == plan.final[FILE] == b"a()\no1()\nb()\no2()\n"


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_already_patched_tree_changes_nothing(version: str) -> None:
    patches, tree = load_patches(FAKE / "patches"), fake(version)
    first = resolve(patches, tree)
    assert not first.failed and not first.already and not first.half_applied
    second = resolve(patches, ChangedTree(tree, first.final))
    assert {result.status for result in second.results} <= {"already", "skipped"}
    assert len(second.already) == len(first.applied)
    assert not second.half_applied and not second.final
    marks = {result.edit.key: result.fingerprint for result in first.results}
    assert all(result.fingerprint == marks[result.edit.key] for result in second.results)


def test_half_applied_tree_is_seen() -> None:
    patches, tree = load_patches(FAKE / "patches"), fake("v1")
    half = resolve(patches, ChangedTree(tree, resolve(patches, tree).contents[1]))
    assert half.half_applied
    assert {result.edit.patch for result in half.already} == {1}


def test_half_applied_edit_is_seen() -> None:
    plan = plan_for("a()\nours()\nb()\na()\n", edit("after", "ours()", "a()", count=2))
    assert plan.half_applied
    assert "1 of 2 places already hold our code" in only(plan).detail


def test_our_code_away_from_its_anchor_is_not_inserted_twice() -> None:
    result = only(plan_for("a()\nb()\nours()\n", AFTER))
    assert result.status == "failed"
    assert f"{FILE}:3: our code stands here, but not beside its anchor" in result.detail


def test_code_upstream_has_itself_is_rejected() -> None:
    """It is indistinguishable from an insertion of ours."""
    assert only(plan_for("a()\nb()\n", edit("after", "a()", "a()"))).status == "failed"


def test_already_is_seen_after_reformatting() -> None:
    change = edit("wrap", 'g(__upstream__, "k")', "f(...)")
    assert only(plan_for("x = g(\n    f(1),\n    'k',\n)\n", change)).status == "already"


def test_long_elif_chain() -> None:
    text = "if x == 0: pass\n" + "".join(f"elif x == {n}: pass\n" for n in range(400)) + "else:\n    a()\n"
    assert applied(text, AFTER).endswith(b"    a()\n    ours()\n")


def test_hits_say_where() -> None:
    (hit,) = only(plan_for("b()\na()\nc()\n", edit("after", "if x:\n    o()", "a()"))).hits
    assert (hit.file, hit.line, hit.insert_line, hit.inserted) == (FILE, 2, 3, ("if x:", "    o()"))


def test_all_failures_are_reported() -> None:
    plan = plan_for("a()\n", edit("after", "o()", "b()", id="n1"), edit("after", "o()", "a()", "f", id="n2"), AFTER)
    assert [result.status for result in plan.results] == ["failed", "failed", "applied"]


def test_directory_tree_does_not_follow_links_out(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "secret").write_text("x")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/link").symlink_to(tmp_path / "secret")
    tree = DirectoryTree(tmp_path / "tree")
    assert tree.read("link") is None
    assert tree.read("../secret") is None


SIMPLE = st.sampled_from(
    ["x = 1", "call(x, 'é')", "pass", "x = [\n 1,  # in\n 2]", "y = '''\nanchor()\n'''", "a(); b()", "z = \\\n 3"]
)
HEADERS = st.sampled_from(
    ["if x:", "while call():", "with y as z:", "def f(a=1):", "@d\nasync def g():", "class C:", "for x in y:"]
)
COMMENTS = st.sampled_from(["", "", "  # comment", " ;", "\t# anchor()"])


@st.composite
def modules(draw: st.DrawFn) -> bytes:
    """A small module with one `anchor()` in it, in a random shape of file."""
    indent = draw(st.sampled_from(["\t", "  ", "    "]))
    lines: list[str] = []

    def block(depth: int, holds_anchor: bool) -> None:
        count = draw(st.integers(1, 4))
        at = draw(st.integers(0, count - 1)) if holds_anchor else -1
        for position in range(count):
            nested = depth < 3 and draw(st.booleans())
            if position == at and not nested:
                text = draw(
                    st.sampled_from(["anchor()", "q(anchor())", "x = 1; anchor()", "anchor(); x = 2", "if x: anchor()"])
                )
                emit(depth, text + draw(COMMENTS.filter(lambda text: ";" not in text)))
            elif nested:
                header = draw(
                    st.sampled_from(["if x:", "while call():", "with y as z:"]) if position == at else HEADERS
                )
                emit(depth, header)
                block(depth + 1, position == at)
            else:
                text = draw(SIMPLE)
                emit(depth, text + (draw(COMMENTS) if "\\" not in text else ""))
            if draw(st.booleans()):
                lines.append(draw(st.sampled_from(["", "# anchor()", indent + "# deeper"])))

    def emit(depth: int, text: str) -> None:
        first, *rest = text.split("\n")
        lines.append(indent * depth + first)
        lines.extend(indent * depth + line if line.startswith(("async", "def")) else line for line in rest)

    block(0, True)
    eol = draw(st.sampled_from(["\n", "\r\n"]))
    text = eol.join(lines) + (eol if draw(st.booleans()) else "")
    return (b"\xef\xbb\xbf" if draw(st.booleans()) else b"") + text.encode()


@settings(max_examples=150, deadline=None, database=None)
@given(modules(), st.sampled_from(["before", "after", "wrap"]))
def test_property_removing_the_insertion_gives_the_original_back(data: bytes, verb: str) -> None:
    ast.parse(data)
    change = edit(verb, "ours(__upstream__)" if verb == "wrap" else "ours(1)", "anchor()")
    assert b"ours(" in applied(data, change)
