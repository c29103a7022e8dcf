"""Small patches and trees for the tests of the engine."""

from __future__ import annotations

import ast
from pathlib import Path

from gh200_rebase.engine.resolve import EditResult, Plan, resolve
from gh200_rebase.patches.patchfile import Edit, Patch
from gh200_rebase.patches.verbs import tidy
from gh200_rebase.proofs.prove import Proof, prove
from gh200_rebase.syntax.tree import DirectoryTree, MemoryTree, Tree

FAKE = Path(__file__).resolve().parents[1] / "fake_upstream"
FILE = "pkg/module.py"
NOTHING = MemoryTree({})


def fake(version: str) -> DirectoryTree:
    return DirectoryTree(FAKE / version)


def edit(verb: str, code: str, anchor: str = "", scope: str = "", **fields: object) -> Edit:
    values: dict[str, object] = {"patch": 1, "id": "edit", "file": FILE, "count": 1, "why": "test", "only_if": ""}
    values |= {"verb": verb, "code": tidy(code), "anchor": anchor, "scope": scope} | fields
    return Edit(**values)  # type: ignore[arg-type]


def patch(*edits: Edit, number: int = 1) -> Patch:
    name = Path(f"{number:02d}-test.toml")
    return Patch(number, "test", "subject", "why", "low", "normal", name, edits, (), ())


def plan_for(text: str | bytes, *edits: Edit) -> Plan:
    data = text.encode() if isinstance(text, str) else text
    return resolve([patch(*edits)], MemoryTree({FILE: data}))


def only(plan: Plan) -> EditResult:
    (result,) = plan.results
    return result


def applied(text: str | bytes, *edits: Edit) -> bytes:
    """The new bytes; every edit must land, compile, be removable, and be found again."""
    data = text.encode() if isinstance(text, str) else text
    tree = MemoryTree({FILE: data})
    plan = resolve([patch(*edits)], tree)
    assert not plan.failed, plan.failed[0].detail
    wrong = [proof for proof in proofs_of(plan, tree, *edits) if not proof.ok and proof.name not in ("names", "calls")]
    assert not wrong, wrong
    return plan.final[FILE]


def proofs_of(plan: Plan, tree: Tree, *edits: Edit, overlay: Tree = NOTHING) -> tuple[Proof, ...]:
    return prove([patch(*edits)], tree, plan, overlay)


def body(text: str) -> list[ast.stmt]:
    return ast.parse(text).body
