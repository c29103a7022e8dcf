"""Patterns: what `...` stands for, and what it does not."""

from __future__ import annotations

import ast

import pytest

from gh200_rebase.patches.pattern import PatternError, compile_pattern, find


def hits(pattern: str, code: str) -> list[int]:
    return [found.node.lineno for found in find(compile_pattern(pattern), ast.parse(code))]


MATCHING = [
    ("f(...)", "f()"),
    ("f(...)", "f(1, *a, k=2, **b)"),
    ("f(a, ...)", "f(a, b, c=1)"),
    ("f(a, ...)", "f(a)"),
    ("f(..., c=1)", "f(a, b, d=2, c=1)"),
    ("f(b=1, a=2)", "f(a=2, b=1)"),
    ("f(**kw)", "f(**kw)"),
    ("x = ...", "x = 1 + 2"),
    ("x = ...", "x: int = 3"),
    ("x: ... = ...", "x: int = 3"),
    ("self.a = f(...)", "self.a = f(\n    1,\n)"),
    ("{...}", "x = {}"),
    ("{...}", "x = {'a': 1}"),
    ("{...}", "x = {1, 2}"),
    ("{'b': ..., **...}", "x = {'a': 1, 'b': 2}"),
    ("[...]", "x = []"),
    ("[a, ...]", "x = [a, b, c]"),
    ("x[...]", "y = x[1:2, 3]"),
    ("with f(...): ...", "with f(1) as g, h: pass"),
    ("with h: ...", "with f(1) as g, h: pass"),
    ("if a: ...", "if a:\n    b\nelse:\n    c"),
    ("if a:\n    ...\n    raise ...", "if a:\n    b\n    raise C(1)"),
    ("if a:\n    ...\n    c()\n    ...", "if a:\n    c()"),
    ("for __any_x in y: ...", "for item in y: pass\nelse: pass"),
    ("try: ...\nexcept ValueError: ...", "try: a\nexcept KeyError: b\nexcept ValueError as e: c"),
    ("def f(): ...", "@g\ndef f(a, *b) -> int: return 1"),
    ("async def f(): ...", "async def f(x): pass"),
    ("class C: ...", "class C(A, metaclass=M): pass"),
    ("class C(A, ...): ...", "class C(A, B, k=1): pass"),
    ("import a", "import a, b"),
    ("from m import a", "from m import b, a"),
    ("__any__.load(...)", "thing.load(1)"),
    ("(...).load(...)", "a.b[c](d).load(1)"),
    ("self.__any_method(x)", "self.whatever(x)"),
    ("x = 'a'", 'x = r"a"'),
    ("return ...", "return 1"),
    ("a and ...", "x = a and b and c"),
    ("f(...)", "x = [f(y) for y in z]"),
    ("f(...)", "x = f'{f(1)}'"),
    ("f(...)", "while f(1): pass"),
]

DIFFERENT = [
    ("f(...)", "g(1)"),
    ("f(a, ...)", "f(b, a)"),
    ("f(a)", "f(a, k=1)"),
    ("f(a)", "f(a, b)"),
    ("x = ...", "x += 1"),
    ("x = ...", "x: int"),
    ("x = ...", "x = y = 1"),
    ("_ = 1", "a = 1"),
    ("x = 1", "x = True"),
    ("x = 1", "x = 1.0"),
    ("[...]", "x = (1,)"),
    ("{'b': ...}", "x = {'a': 1, 'b': 2}"),
    ("return ...", "return"),
    ("def f(): ...", "async def f(): pass"),
    ("def f(a): ...", "def f(b): pass"),
    ("with a: ...", "async def f():\n    async with a: pass"),
    ("if a:\n    raise ...", "if a:\n    b\n    raise C"),
    ("if a:\n    b", "if a:\n    b\nelse:\n    c"),
    ("f(...)", "'f(1)'  # f(2)"),
    ("f(...)", "def g(): f(1)"),
    ("f(...)", "class C: f(1)"),
    ("f(...)", "x = lambda: f(1)"),
    ("'__any__'", "'text'"),
    ("from m import a", "from m import a as b"),
]


@pytest.mark.parametrize(("pattern", "code"), MATCHING)
def test_matches(pattern: str, code: str) -> None:
    assert len(hits(pattern, code)) == 1


@pytest.mark.parametrize(("pattern", "code"), DIFFERENT)
def test_does_not_match(pattern: str, code: str) -> None:
    assert hits(pattern, code) == []


def test_finds_in_nested_blocks_in_source_order() -> None:
    code = (
        "f(1)\nif a:\n    f(2)\nelse:\n    try:\n        b\n    except C:\n        f(3)\n    finally:\n        f(4)\n"
    )
    assert hits("f(...)", code) == [1, 3, 8, 10]


def test_finds_nested_calls_outermost_first() -> None:
    found = list(find(compile_pattern("f(...)"), ast.parse("f(f(1))")))
    assert [found_one.node.col_offset for found_one in found] == [0, 2]


def test_finds_in_match_cases() -> None:
    assert hits("f(...)", "match x:\n    case 1 if f(0):\n        f(1)") == [2, 3]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("...", "matches everything"),
        ("a; b", "2 statements"),
        ("", "0 statements"),
        ("if x", "not Python"),
        ("else: ...", "not Python"),
        ("a\0b", "not Python"),
    ],
)
def test_rejects_bad_patterns(text: str, reason: str) -> None:
    with pytest.raises(PatternError, match=reason):
        compile_pattern(text)
