"""What the patches call exists under the same name and with the same parameters in the module that a hook names."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "simpletuner/gh200"


def functions(path: Path) -> dict[str, ast.FunctionDef]:
    nodes = ast.parse(path.read_text(encoding="utf-8")).body
    return {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}


def module_of(hook: ast.FunctionDef) -> Path | None:
    """The module that its decorator names."""
    for decorator in hook.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "calls":
            return PACKAGE / (ast.literal_eval(decorator.args[0]).replace(".", "/") + ".py")
    return None


HOOKS = {name: hook for name, hook in functions(PACKAGE / "hooks.py").items() if name != "calls"}


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_has_the_name_and_parameters_of_what_it_calls(name: str) -> None:
    hook, module = HOOKS[name], module_of(HOOKS[name])
    assert module is not None and ast.get_docstring(hook)
    callee = functions(module)[name]
    assert [arg.arg for arg in hook.args.args] == [arg.arg for arg in callee.args.args]
    assert ast.unparse(hook.returns or ast.Constant(None)) == ast.unparse(callee.returns or ast.Constant(None))


def test_a_hook_returns_its_argument_while_no_run_is_active() -> None:
    from simpletuner.gh200 import hooks

    latents = [object()]
    assert hooks.moved_together(latents) is latents
