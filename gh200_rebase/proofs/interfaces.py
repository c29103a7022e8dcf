"""Whether this upstream has the names, parameters and methods the overlay relies on."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..engine.files import condition_holds
from ..engine.resolve import Plan, resolve
from ..patches.patchmodel import Expect, Patch
from ..syntax.nodes import FUNCTIONS, deep_trees, places
from ..syntax.source import Source, Unreadable, read_source
from ..syntax.tree import ChangedTree, Tree
from .calls import call_problems, callable_signature, import_problems, imported_names
from .modules import PACKAGE, Definition, Imported, Module, Modules, bindings, defined_in, dotted, module_name
from .signatures import call_problem, method_signature, methods, override_problem, signature_of

IMPORT_ERRORS = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})
MAKERS = frozenset({"__init__", "__new__", "__init_subclass__"})


@dataclass(frozen=True)
class InterfaceResult:
    """One thing relied on: `where` is the place of ours that does."""

    name: str
    where: str
    ok: bool
    detail: str


def check_interfaces(
    patches: Sequence[Patch], tree: Tree, overlay: Tree, plan: Plan | None = None
) -> tuple[InterfaceResult, ...]:
    """Everything the fork's package uses of upstream. Patches add names too, so upstream is seen with them applied.

    Scripts beside the package are not bound by it: they try upstream's features and say so where a release lacks one.
    """
    plan = plan or resolve(patches, tree, with_fingerprints=False)
    modules = Modules(overlay, ChangedTree(tree, plan.final))
    results: list[InterfaceResult] = []
    for path in overlay.paths():
        if path.endswith(".py") and path.startswith(f"{PACKAGE}/"):
            results += _overlay_results(path, modules)
    return (*results, *_expected_results(patches, tree))


@deep_trees()
def _overlay_results(path: str, modules: Modules) -> list[InterfaceResult]:
    return list(_file_results(path, modules.overlay.read(path) or b"", modules))


@deep_trees()
def _expected_results(patches: Sequence[Patch], tree: Tree) -> list[InterfaceResult]:
    return [_expected(patch, item, tree) for patch in patches for item in patch.expects]


def _file_results(path: str, data: bytes, modules: Modules) -> Iterator[InterfaceResult]:
    try:
        source = read_source(path, data)
    except Unreadable as error:
        yield InterfaceResult(path, path, False, str(error))
        return
    nodes = list(ast.walk(source.tree))
    optional = _optional_imports(nodes)
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) and id(node) not in optional]
    yield from _import_results(path, imports, modules)
    names = _upstream_names(path, nodes, modules)
    for node, problem in call_problems([source.tree], names, modules):
        yield InterfaceResult(problem.split(" ")[0].rstrip(":"), f"{path}:{node.lineno}", False, problem)  # type: ignore[attr-defined]
    module = modules.find(module_name(path))
    for node in nodes:
        if isinstance(node, ast.ClassDef) and module and module.path == path:
            yield from _class_results(module, node, modules)


def _optional_imports(nodes: Iterable[ast.AST]) -> set[int]:
    """Imports whose failure the code expects."""
    found: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.Try) and any(_catches_import(handler) for handler in node.handlers):
            found |= {id(part) for item in node.body for part in ast.walk(item)}
    return found


def _catches_import(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    return any(isinstance(part, ast.Name) and part.id in IMPORT_ERRORS for part in ast.walk(handler.type))


def _import_results(path: str, imports: Sequence[ast.AST], modules: Modules) -> Iterator[InterfaceResult]:
    for node in imports:
        problems = [problem for _, problem in import_problems(path, [node], modules)]
        targets = {meaning for _, meaning in bindings(path, node) if isinstance(meaning, Imported)}
        if any(target.module.split(".")[0] == PACKAGE for target in targets):
            yield InterfaceResult(ast.unparse(node), f"{path}:{node.lineno}", not problems, "; ".join(problems))  # type: ignore[attr-defined]


def _upstream_names(path: str, nodes: Sequence[ast.AST], modules: Modules) -> dict[str, Imported]:
    """Imported names that can only mean one thing of upstream's in the whole file."""
    rebound = {node.arg for node in nodes if isinstance(node, ast.arg)}
    rebound |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    known: dict[str, Imported] = {}
    for node in nodes:
        for name, meaning in imported_names(path, [node]).items():
            if known.setdefault(name, meaning) != meaning:
                rebound.add(name)
    return {
        name: meaning
        for name, meaning in known.items()
        if name not in rebound and not modules.in_overlay(meaning.module) and not _is_overlay_module(meaning, modules)
    }


def _is_overlay_module(meaning: Imported, modules: Modules) -> bool:
    return bool(meaning.name) and modules.in_overlay(f"{meaning.module}.{meaning.name}")


def _class_results(module: Module, node: ast.ClassDef, modules: Modules) -> Iterator[InterfaceResult]:
    """Overrides of upstream's methods take what upstream's take; methods called through super() exist."""
    bases = [base for base in modules.bases(Definition(module, node)) if base and isinstance(base.node, ast.ClassDef)]
    for name, method in methods(node).items():
        where = f"{module.path}:{method.lineno}"
        theirs = _inherited(bases, name, modules)
        is_upstream = theirs is not None and theirs.module is not None and not modules.in_overlay(theirs.module.name)
        if theirs and is_upstream and name not in MAKERS and isinstance(theirs.node, FUNCTIONS):
            problem = override_problem(method_signature(method), method_signature(theirs.node))
            yield InterfaceResult(
                f"{node.name}.{name}", where, not problem, problem and f"upstream's override: {problem}"
            )
        for call in _super_calls(method):
            assert isinstance(call.func, ast.Attribute)
            problem = _super_problem(call, call.func.attr, bases, modules) if _all_seen(module, node, modules) else ""
            yield InterfaceResult(
                f"{node.name}: super().{call.func.attr}", f"{module.path}:{call.lineno}", not problem, problem
            )


def _all_seen(module: Module, node: ast.ClassDef, modules: Modules) -> bool:
    return all(base and isinstance(base.node, ast.ClassDef) for base in modules.bases(Definition(module, node)))


def _inherited(bases: Sequence[Definition], name: str, modules: Modules) -> Definition | None:
    return next((found for base in bases if (found := modules.member(base, name))), None)


def _super_calls(method: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(method):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        owner = node.func.value
        if isinstance(owner, ast.Call) and isinstance(owner.func, ast.Name) and owner.func.id == "super":
            yield node


def _super_problem(call: ast.Call, name: str, bases: Sequence[Definition], modules: Modules) -> str:
    found = _inherited(bases, name, modules)
    if found is None:
        return "" if hasattr(object, name) else f"no base class has {name}"
    signature = callable_signature(found, modules, bound=True)
    problem = call_problem(call, signature) if signature else ""
    return f"the base class's {name} {problem}" if problem else ""


def _expected(patch: Patch, item: Expect, tree: Tree) -> InterfaceResult:
    where = f"{patch.path.name}: expect {item.file}"
    if not condition_holds(item.only_if, item.file, tree):
        return InterfaceResult(item.name, where, True, f"skipped: {item.only_if} is not in this upstream")
    data = tree.read(item.file)
    if data is None:
        return InterfaceResult(item.name, where, False, "there is no such file")
    try:
        problem = _name_problem(read_source(item.file, data), item)
        path = defined_in(item.file, item.name, tree) if problem else item.file
        if path != item.file:
            problem = _name_problem(read_source(path, tree.read(path) or b""), item)
    except Unreadable as error:
        problem = str(error)
    if problem and item.only_if and " has no " in problem:
        return InterfaceResult(item.name, where, True, f"skipped: {item.only_if} is there, {item.name} is not (yet)")
    return InterfaceResult(item.name, where, not problem, problem)


def _name_problem(source: Source, item: Expect) -> str:
    found = [place.node for place in source.scopes.get(item.name, ())]
    if not found:
        if item.args or not _has_attribute(source, *item.name.rpartition(".")[::2]):
            return f"{item.file} has no {item.name}"
        return ""
    for node in found:
        function = methods(node).get("__init__") if isinstance(node, ast.ClassDef) else node
        if item.args and not isinstance(function, FUNCTIONS):
            return f"{item.name} takes no arguments"
        missing = [name for name in item.args if not signature_of(function).takes(name)] if item.args else []  # type: ignore[arg-type]
        if missing:
            return f"{item.name} does not accept {', '.join(missing)}"
    return ""


def _has_attribute(source: Source, owner: str, name: str) -> bool:
    """A value bound in the owner's body, or set on `self` by one of its methods."""
    for scope in source.scopes.get(owner, ()):
        for place in places(scope.node):
            if any(bound == name for bound, _ in bindings(source.path, place.node)):
                return True
        stores = (node for node in ast.walk(scope.node) if isinstance(node, ast.Attribute) and node.attr == name)
        if any(isinstance(node.ctx, ast.Store) and dotted(node) in (["self", name], ["cls", name]) for node in stores):
            return True
    return False
