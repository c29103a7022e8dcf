"""The upstream's files as the edits see them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..patches.patchmodel import Edit
from ..syntax.source import Unreadable, read_source
from ..syntax.tree import Tree
from .ours import Ours, take_out


class Files:
    """The upstream's files, read once, with our code taken out where a tree has it already."""

    def __init__(
        self, tree: Tree, edits: Sequence[Edit], with_fingerprints: bool, imported: frozenset[str] = frozenset()
    ) -> None:
        self.tree, self.edits, self.with_fingerprints = tree, edits, with_fingerprints
        self.imported = imported
        self._known: dict[str, Ours | None] = {}

    def get(self, path: str) -> Ours | None:
        """None when there is no such file; raises Unreadable."""
        if path not in self._known:
            data = self.tree.read(path)
            forms = [form for edit in self.edits for form in edit.forms() if form.file == path]
            self._known[path] = None if data is None else take_out(read_source(path, data), forms)
        return self._known[path]

    def known(self) -> Iterator[tuple[str, Ours]]:
        """The files read so far."""
        return ((path, ours) for path, ours in self._known.items() if ours)


def condition_holds(only_if: str, file: str, tree: Tree) -> bool:
    """Whether what an `only_if` names is there; a file that cannot be read is reported by the edit itself."""
    if not only_if:
        return True
    if only_if.startswith("exists:"):
        return tree.read(only_if.removeprefix("exists:")) is not None
    data = tree.read(file)
    try:
        return data is not None and only_if in read_source(file, data).scopes
    except Unreadable:
        return True
