"""Which functions and classes of the overlay each edit calls: read off its code, its patch's imports and the base class they add."""

from __future__ import annotations

import ast

from ..patches.patchmodel import Edit, Patch
from ..patches.verbs import code_nodes, statements
from .calls import dotted_uses, imported_names
from .modules import Imported, Modules, dotted

type Callee = tuple[str, str]
"""(module of the overlay, name in it)."""


def callees(patch: Patch, edit: Edit, modules: Modules) -> list[Callee]:
    """Everything of ours that this edit's code reaches, each once, in the order it is written."""
    imported = (node for code in patch.imports for node in statements(code))
    inside = (node for code in code_nodes(edit) for node in ast.walk(code))
    names = imported_names(edit.file, [*imported, *inside])
    meanings = {name: _callee(meaning, modules) for name, meaning in names.items()}
    base = next((found for chain in _base_chains(patch, edit) if (found := _reached(chain, meanings, None))), None)
    chains = [dotted(chain) for chain, _ in dotted_uses(code_nodes(edit))]
    return list(dict.fromkeys(found for chain in chains if (found := _reached(chain, meanings, base))))


def _callee(meaning: Imported, modules: Modules) -> Callee:
    whole = f"{meaning.module}.{meaning.name}"
    return (whole, "") if modules.in_overlay(whole) else (meaning.module, meaning.name)


def _reached(chain: list[str], meanings: dict[str, Callee], base: Callee | None) -> Callee | None:
    if chain and chain[0] in meanings:
        module, name = meanings[chain[0]]
        return module, ".".join([*([name] if name else []), *chain[1:]])
    if len(chain) == 2 and chain[0] == "self" and base:
        return base[0], f"{base[1]}.{chain[1]}"
    return None


def _base_chains(patch: Patch, edit: Edit) -> list[list[str]]:
    owner = edit.scope.split(".")[0]
    bases = [other for other in patch.edits if other.verb == "base" and (other.file, other.scope) == (edit.file, owner)]
    return [dotted(node) for other in bases for node in code_nodes(other)]
