"""The imports a patch states once become an edit of each file in which one of its edits uses the name."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from .patchmodel import Edit, Patch
from .verbs import IMPORT, statements, used_names


def import_edits(patch: Patch, forms: Iterable[Edit]) -> Iterator[Edit]:
    """One edit per file and name that these forms of the patch's edits use."""
    used: dict[str, set[str]] = {}
    for form in forms:
        used.setdefault(form.file, set()).update(used_names(form))
    for file, names in used.items():
        for code in patch.imports:
            name = bound_name(code)
            if name in names:
                edit_id = f"import {name} into {file}"
                why = "name for the sites in this file"
                yield Edit(patch.number, edit_id, file, "", IMPORT, "", code, 1, why, "")


def imported_by(patch: Patch) -> set[str]:
    """Names that a patch's imports bind."""
    return {bound_name(code) for code in patch.imports}


def bound_name(code: str) -> str:
    """What an import of one name binds."""
    (node,) = statements(code)
    assert isinstance(node, ast.Import | ast.ImportFrom)
    (alias,) = node.names
    return alias.asname or alias.name.split(".")[0]


def unused_imports(patch: Patch) -> list[str]:
    """Imports whose name no edit of the patch uses."""
    names = {name for edit in patch.edits for form in edit.forms() for name in used_names(form)}
    return [code for code in patch.imports if bound_name(code) not in names]
