"""Modules of the overlay and of upstream, read as syntax: which names they have, and what these are."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..syntax.nodes import DEFS, own_nodes, places
from ..syntax.source import Unreadable, read_source
from ..syntax.tree import MemoryTree, Tree

PACKAGE = "simpletuner"
DEEPEST = 8
MODULE_ATTRIBUTES = frozenset({"__file__", "__name__", "__doc__", "__package__", "__spec__", "__path__", "__loader__"})


@dataclass(frozen=True)
class Imported:
    """A name that stands for a module, or for a name in one."""

    module: str
    name: str = ""


type Meaning = ast.AST | Imported | None


@dataclass(frozen=True)
class Module:
    """A parsed module; `names` maps each top-level name to its def, class or import, or None for another value."""

    name: str
    path: str
    tree: ast.Module
    names: dict[str, Meaning] = field(compare=False)
    stars: tuple[str, ...]


@dataclass(frozen=True)
class Definition:
    """What a dotted name means. `node` is None if it exists but cannot be seen into; `module` is where it is."""

    module: Module | None
    node: ast.AST | None


def module_name(path: str) -> str:
    """The dotted name of a path."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def absolute(path: str, node: ast.ImportFrom) -> str:
    """The module an import in this file names, relative ones resolved."""
    if not node.level:
        return node.module or ""
    package = path.removesuffix(".py").split("/")[: -node.level]
    return ".".join([*package, *([node.module] if node.module else [])])


def bindings(path: str, node: ast.AST) -> Iterator[tuple[str, Meaning]]:
    """Names a statement binds, with what they mean."""
    if isinstance(node, DEFS):
        yield node.name, node
    elif isinstance(node, ast.Import):
        for alias in node.names:
            yield (alias.asname, Imported(alias.name)) if alias.asname else _first_part(alias.name)
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            yield alias.asname or alias.name, Imported(absolute(path, node), alias.name)
    else:
        for part in own_nodes(node):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                yield part.id, None
            if isinstance(part, ast.ExceptHandler) and part.name:
                yield part.name, None


def _first_part(name: str) -> tuple[str, Imported]:
    first = name.split(".")[0]
    return first, Imported(first)


class Modules:
    """Finds modules in the overlay first, then in upstream; each is parsed once."""

    def __init__(self, overlay: Tree, upstream: Tree) -> None:
        self.overlay, self.upstream = overlay, upstream
        self._known: dict[str, Module | None] = {}

    def find(self, name: str) -> Module | None:
        """The module of that name, parsed once."""
        if name not in self._known:
            self._known[name] = self._load(name)
        return self._known[name]

    def in_overlay(self, name: str) -> bool:
        """Whether the overlay has this module."""
        return any(self.overlay.read(path) is not None for path in _paths(name))

    def exists(self, name: str) -> bool:
        """Also a directory without `__init__.py` is a package."""
        return self.find(name) is not None or self._is_directory(name)

    def _is_directory(self, name: str) -> bool:
        path = name.replace(".", "/")
        return self.overlay.has_directory(path) or self.upstream.has_directory(path)

    def _load(self, name: str) -> Module | None:
        for tree in (self.overlay, self.upstream):
            for path in _paths(name):
                data = tree.read(path)
                if data is None:
                    continue
                try:
                    return _module(name, path, read_source(path, data).tree)
                except Unreadable:
                    return None
        return None

    def look_up(self, module: str, name: str, depth: int = 0) -> Definition | None:
        """What a name of a module is; None if there is no such name."""
        found = self.find(module)
        if found is not None and name in found.names:
            meaning = found.names[name]
            if not isinstance(meaning, Imported):
                return Definition(found, meaning)
            return self.follow(meaning, depth + 1) or Definition(None, None)
        for star in found.stars if found else ():
            known = self.find(star) if star.startswith(PACKAGE) else None
            inner = self.look_up(star, name, depth + 1) if known and depth < DEEPEST else None
            if inner or not star.startswith(PACKAGE):
                return inner or Definition(None, None)
        if found is not None and name in MODULE_ATTRIBUTES:
            return Definition(None, None)
        submodule = self.find(f"{module}.{name}")
        if submodule is None and self._is_directory(f"{module}.{name}"):
            return Definition(None, None)
        return Definition(submodule, submodule.tree) if submodule else None

    def follow(self, target: Imported, depth: int = 0) -> Definition | None:
        """What an import stands for. Modules outside the package exist, but are not looked into."""
        if target.module.split(".")[0] != PACKAGE or depth > DEEPEST:
            return Definition(None, None)
        if target.name:
            return self.look_up(target.module, target.name, depth)
        module = self.find(target.module)
        return Definition(module, module.tree) if module else None

    def walk(self, start: Definition, parts: list[str]) -> tuple[Definition | None, str]:
        """Follow attributes from a definition; also returns the first part that does not exist."""
        at = start
        for part in parts:
            step: Definition | None
            if isinstance(at.node, ast.Module) and at.module:
                step = self.look_up(at.module.name, part)
            elif isinstance(at.node, ast.ClassDef) and at.module:
                step = self.member(at, part)
            else:
                return Definition(None, None), ""
            if step is None:
                return None, part
            at = step
        return at, ""

    def member(self, owner: Definition, name: str, depth: int = 0) -> Definition | None:
        """A class attribute, own or inherited; a base that cannot be seen into may have anything."""
        assert isinstance(owner.node, ast.ClassDef) and owner.module
        for place in places(owner.node):
            for bound, meaning in bindings(owner.module.path, place.node):
                if bound == name:
                    return Definition(owner.module, meaning if isinstance(meaning, ast.AST) else None)
        for base in self.bases(owner):
            if base is None or not isinstance(base.node, ast.ClassDef) or depth > DEEPEST:
                return Definition(None, None)
            found = self.member(base, name, depth + 1)
            if found:
                return found
        return Definition(None, None) if owner.node.keywords else None

    def bases(self, owner: Definition) -> list[Definition | None]:
        """The base classes; None for one that cannot be found."""
        assert isinstance(owner.node, ast.ClassDef) and owner.module
        found: list[Definition | None] = []
        for node in owner.node.bases:
            parts = dotted(node)
            if parts == ["object"]:
                continue
            start = self.look_up(owner.module.name, parts[0]) if parts else None
            found.append(self.walk(start, parts[1:])[0] if start else None)
        return found


def defined_in(file: str, name: str, tree: Tree) -> str:
    """The file that has this name: the one given, or the one that a shim in it takes the name from."""
    found = Modules(MemoryTree({}), tree).look_up(module_name(file), name.split(".")[0])
    return found.module.path if found and found.module else file


def dotted(node: ast.AST) -> list[str]:
    """`a.b.c` as its parts; empty for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else []


def _paths(name: str) -> tuple[str, str]:
    base = name.replace(".", "/")
    return f"{base}.py", f"{base}/__init__.py"


def _module(name: str, path: str, tree: ast.Module) -> Module:
    names: dict[str, Meaning] = {}
    stars: list[str] = []
    for place in places(tree):
        for bound, meaning in bindings(path, place.node):
            if bound == "*" and isinstance(meaning, Imported):
                stars.append(meaning.module)
            elif names.get(bound) is None:
                names[bound] = meaning
        names |= {key: value for key, value in _declared(name, place.node).items() if names.get(key) is None}
    return Module(name, path, tree, names, tuple(stars))


def _declared(module: str, node: ast.AST) -> dict[str, Meaning]:
    """Names a lazy package declares in `__all__` or in a literal dict `_EXPORTS` (name -> module or module, name)."""
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    name = target.id if isinstance(target, ast.Name) else ""
    if name not in ("__all__", "_EXPORTS"):
        return {}
    try:
        value = ast.literal_eval(node.value)  # type: ignore[attr-defined]
    except (ValueError, TypeError):
        return {}
    if isinstance(value, dict):
        return {key: _exported(module, key, where) for key, where in value.items()}
    return dict.fromkeys(value, None)


def _exported(module: str, name: str, where: object) -> Imported | None:
    parts = (where, name) if isinstance(where, str) else where
    if not (isinstance(parts, tuple) and len(parts) == 2 and all(isinstance(part, str) for part in parts)):
        return None
    target = module + parts[0] if parts[0].startswith(".") else parts[0]
    return Imported(target if target.startswith(PACKAGE) else f"{module}.{target}", parts[1])
