"""Whether what our inserted code calls exists in the overlay, and takes the arguments it is given."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

from ..patches.patchmodel import Edit
from ..patches.verbs import code_nodes
from ..syntax.nodes import FUNCTIONS
from .modules import PACKAGE, Definition, Imported, Modules, absolute, bindings, dotted
from .removal import Own
from .signatures import Signature, call_problem, dataclass_signature, function_signature, method_signature

type Names = dict[str, Imported]


def imported_names(path: str, nodes: Iterable[ast.AST]) -> Names:
    """What each imported name of a piece of code stands for."""
    found: Names = {}
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {name: meaning for name, meaning in bindings(path, node) if isinstance(meaning, Imported)}
    return found


def import_problems(path: str, nodes: Iterable[ast.AST], modules: Modules) -> Iterator[tuple[ast.stmt, str]]:
    """Imports from the package that name a module or a name that is not there."""
    for node in nodes:
        if isinstance(node, ast.Import):
            wanted = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            wanted = [(absolute(path, node), alias.name) for alias in node.names]
        else:
            continue
        for module, name in wanted:
            if module.split(".")[0] != PACKAGE:
                continue
            if not modules.exists(module):
                yield node, f"there is no module {module}"
            elif name not in ("", "*") and modules.look_up(module, name) is None:
                yield node, f"{module} has no {name}"


def call_problems(nodes: Iterable[ast.AST], names: Names, modules: Modules) -> Iterator[tuple[ast.AST, str]]:
    """Names and calls of imported things of the package that do not exist or do not fit."""
    for chain, call in dotted_uses(nodes):
        parts = dotted(chain)
        target = names.get(parts[0]) if parts else None
        start = modules.follow(target) if target else None
        if start is None:
            continue
        found, missing = modules.walk(start, parts[1:])
        if found is None:
            yield chain, f"{ast.unparse(chain)}: {missing} does not exist"
        elif call is not None:
            signature = callable_signature(found, modules, bound=False)
            problem = call_problem(call, signature) if signature else ""
            if problem:
                yield call, f"{ast.unparse(chain)} {problem}"


def dotted_uses(nodes: Iterable[ast.AST]) -> Iterator[tuple[ast.expr, ast.Call | None]]:
    """Every longest dotted name in the code, with the call it is the function of."""
    for node in nodes:
        parts = list(ast.walk(node))
        calls = {id(part.func): part for part in parts if isinstance(part, ast.Call)}
        inner = {id(part.value) for part in parts if isinstance(part, ast.Attribute)}
        for part in parts:
            if isinstance(part, ast.Name | ast.Attribute) and id(part) not in inner:
                yield part, calls.get(id(part))


def callable_signature(found: Definition, modules: Modules, *, bound: bool) -> Signature | None:
    """What a function or class takes; None where syntax cannot tell."""
    if isinstance(found.node, FUNCTIONS):
        return method_signature(found.node) if bound else function_signature(found.node)
    if not isinstance(found.node, ast.ClassDef):
        return None
    init = modules.member(found, "__init__")
    if init is None:
        return dataclass_signature(found.node) or (None if _is_odd(found.node) else Signature.empty())
    return method_signature(init.node) if isinstance(init.node, FUNCTIONS) else None


def _is_odd(node: ast.ClassDef) -> bool:
    """Decorators, metaclasses and `__new__` may change what a class takes."""
    return bool(
        node.decorator_list or node.keywords or any(getattr(item, "name", "") == "__new__" for item in node.body)
    )


def self_problems(
    form: Edit, own: Sequence[Own], hooks: Sequence[Definition], modules: Modules
) -> Iterator[tuple[ast.AST, str]]:
    """Calls of `self.x(...)` where the patches gave the class a base: x must be upstream's or the base's."""
    owner = next((node for item in own for node in item.around if isinstance(node, ast.ClassDef)), None)
    if owner is None or not hooks:
        return
    theirs = {getattr(item, "name", "") for item in owner.body}
    for chain, call in dotted_uses(code_nodes(form)):
        parts = dotted(chain)
        if call is None or len(parts) != 2 or parts[0] not in ("self", "cls") or parts[1] in theirs:
            continue
        found = next((member for hook in hooks if (member := modules.member(hook, parts[1]))), None)
        if found is None:
            yield call, f"{ast.unparse(chain)} is neither in {owner.name} nor in the base class the patches add"
            continue
        signature = callable_signature(found, modules, bound=True)
        problem = call_problem(call, signature) if signature else ""
        if problem:
            yield call, f"{ast.unparse(chain)} {problem}"
