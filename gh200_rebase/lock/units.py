"""What an assessment consists of, cut so that each piece depends on few files: results are kept per file content."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Protocol

from ..engine.resolve import Plan, resolve
from ..patches.lockfile import Entry
from ..patches.patchmodel import Edit, Patch
from ..project import Project
from ..proofs.bodies import Body, find_bodies
from ..proofs.interfaces import InterfaceResult, expected_results, overlay_results
from ..proofs.modules import PACKAGE
from ..proofs.prove import check_placements, prove
from ..syntax.tree import MemoryTree, TracedTree, Tree
from .drift import observe

# A change of anything else in the tool cannot change a result.
_DECISIVE = ("engine/*.py", "lock/drift.py", "lock/units.py", "patches/*.py", "proofs/*.py", "syntax/*.py")


class MarkedTree(Tree, Protocol):
    """A tree that tells two contents apart without reading them."""

    def mark(self, path: str) -> str: ...


@dataclass(frozen=True)
class Finding:
    """What one unit found. Entries have no release: the same content may be in many."""

    entries: dict[str, Entry]
    failures: tuple[str, ...] = ()
    violations: tuple[str, ...] = ()
    proofs: tuple[int, int] = (0, 0)
    interfaces: tuple[int, int] = (0, 0)

    def as_text(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_text(text: str) -> Finding:
        data: dict[str, Any] = json.loads(text)
        entries = {key: Entry(**entry) for key, entry in data.pop("entries").items()}
        return Finding(entries, **{key: tuple(value) for key, value in data.items()})


@dataclass(frozen=True)
class Unit:
    """`key` changes with the tool, the patches it applies and the name of what it checks."""

    name: str
    key: str
    work: Callable[[Tree, Tree], Finding]

    def run(self, upstream: Tree, overlay: Tree) -> tuple[Finding, tuple[str, ...], tuple[str, ...]]:
        """The finding, and the paths of upstream and of the overlay it may depend on."""
        seen, ours = TracedTree(upstream), TracedTree(overlay)
        found = self.work(seen, ours)
        return found, tuple(sorted(seen.asked)), tuple(sorted(ours.asked))


@dataclass(frozen=True)
class Units:
    """Every unit of a project."""

    project: Project

    @cached_property
    def all(self) -> dict[str, Unit]:
        made: list[Unit] = []
        for group in groups(self.project.patches):
            edits = [edit for patch in group for edit in patch.edits]
            made.append(self._unit("edits " + " ".join(edit.key for edit in edits), group, _edits_work(group)))
        for path in self.project.overlay.paths():
            if path.endswith(".py") and path.startswith(f"{PACKAGE}/"):
                made.append(self._unit(f"overlay {path}", self.project.patches, self._overlay_work(path)))
        made.append(self._unit("expected", self.project.patches, _expected_work(self.project.patches)))
        made.append(self._unit("collisions", (), _collisions_work))
        return {unit.name: unit for unit in made}

    def _unit(self, name: str, patches: Sequence[Patch], work: Callable[[Tree, Tree], Finding]) -> Unit:
        said = repr([(patch.edits, patch.imports, patch.expects) for patch in patches])
        return Unit(name, hashlib.sha256(f"{self._tool}\0{name}\0{said}".encode()).hexdigest(), work)

    def of_edit(self, key: str) -> Unit:
        return next(unit for name, unit in self.all.items() if key in name.split(" ")[1:])

    @cached_property
    def _tool(self) -> str:
        state = hashlib.sha256(repr(sys.version_info[:2]).encode())
        for pattern in _DECISIVE:
            for path in sorted((self.project.root / "gh200_rebase").glob(pattern)):
                state.update(path.name.encode() + b"\0" + path.read_bytes())
        return state.hexdigest()

    def _overlay_work(self, path: str) -> Callable[[Tree, Tree], Finding]:
        def work(upstream: Tree, overlay: Tree) -> Finding:
            return _interfaces(overlay_results(path, overlay, _Patched(self.project.patches, upstream)))

        return work


def groups(patches: Sequence[Patch]) -> list[tuple[Patch, ...]]:
    """The patches, cut so that no file is in two pieces: what happens in one cannot be seen in another."""
    edits = [edit for patch in patches for edit in patch.edits]
    joined: list[tuple[set[str], set[str]]] = []
    for edit in edits:
        files = {form.file for form in edit.forms()}
        touching = [item for item in joined if item[0] & files]
        joined = [item for item in joined if item not in touching]
        joined.append((files.union(*(item[0] for item in touching)), {edit.key}.union(*(i[1] for i in touching))))
    return [_only(patches, keys) for _, keys in joined]


def _only(patches: Sequence[Patch], keys: set[str]) -> tuple[Patch, ...]:
    cut = (replace(patch, edits=tuple(edit for edit in patch.edits if edit.key in keys)) for patch in patches)
    return tuple(patch for patch in cut if patch.edits)


def _edits_work(patches: tuple[Patch, ...]) -> Callable[[Tree, Tree], Finding]:
    def work(upstream: Tree, overlay: Tree) -> Finding:
        plan = resolve(patches, upstream)
        proofs = () if plan.failed else prove(patches, upstream, plan, overlay)
        broken = [f"{proof.edit_key}: proof '{proof.name}' failed: {proof.detail}" for proof in proofs if not proof.ok]
        wrong = [f"{v.edit_key} ({v.file}:{v.line}): {v.what}" for v in check_placements(upstream, plan)]
        bodies = find_bodies((), plan.results, upstream)
        return Finding(
            entries=observe("", plan.results, bodies),
            failures=(*_unplaced(plan), *broken, *_lost(bodies)),
            violations=tuple(wrong),
            proofs=(sum(proof.ok for proof in proofs), len(proofs)),
        )

    return work


def _unplaced(plan: Plan) -> list[str]:
    already = [f"{result.edit.key}: our code is already there" for result in plan.already]
    return [f"{result.edit.key}: {result.detail}" for result in plan.failed] + already


class _Patched:
    """Upstream with our edits; a file is patched when somebody reads it."""

    def __init__(self, patches: Sequence[Patch], base: Tree) -> None:
        self.base = base
        self._groups = {form.file: group for group in groups(patches) for form in _forms(group)}

    def read(self, path: str) -> bytes | None:
        data = self.base.read(path)
        if data is None or path not in self._groups:
            return data
        group = self._groups[path]
        files = sorted({form.file for form in _forms(group)})
        found = tuple((file, there) for file in files if (there := self.base.read(file)) is not None)
        return _patched(group, found).get(path, data)

    def paths(self) -> list[str]:
        return self.base.paths()

    def has_folder(self, path: str) -> bool:
        return self.base.has_folder(path)


@lru_cache(maxsize=32)
def _patched(group: tuple[Patch, ...], files: tuple[tuple[str, bytes], ...]) -> dict[str, bytes]:
    # `only_if` may name a file of another group, which is not here: such an edit adds no name anybody asks for.
    return resolve(group, MemoryTree(dict(files)), with_fingerprints=False).final


def _forms(patches: Iterable[Patch]) -> list[Edit]:
    return [form for patch in patches for edit in patch.edits for form in edit.forms()]


def _expected_work(patches: Sequence[Patch]) -> Callable[[Tree, Tree], Finding]:
    def work(upstream: Tree, overlay: Tree) -> Finding:
        found, bodies = _interfaces(expected_results(patches, upstream)), find_bodies(patches, (), upstream)
        return replace(found, entries=observe("", (), bodies), failures=(*found.failures, *_lost(bodies)))

    return work


def _lost(bodies: Sequence[Body]) -> list[str]:
    return [f"{body.key}: {body.problem}; ours: {body.ours}" for body in bodies if body.problem]


def _collisions_work(upstream: Tree, overlay: Tree) -> Finding:
    hit = [path for path in overlay.paths() if upstream.read(path) is not None]
    return Finding({}, tuple(f"{path}: upstream has a file of this name, the overlay would replace it" for path in hit))


def _interfaces(results: Sequence[InterfaceResult]) -> Finding:
    bad = [f"{item.where}: {item.name}: {item.detail}" for item in results if not item.ok]
    return Finding({}, tuple(bad), interfaces=(len(results) - len(bad), len(results)))
