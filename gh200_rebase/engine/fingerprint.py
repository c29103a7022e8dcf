"""What an edit's surroundings look like, as hashes: enough to notice a change, nothing of upstream's text."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from ..patches.patchmodel import Edit
from ..patches.pattern import Found
from ..syntax.exits import exits_before
from ..syntax.nodes import dump, header_dump
from ..syntax.source import Source


@dataclass(frozen=True)
class Fingerprint:
    """Number of hits, and hashes of what surrounds them."""

    hits: int
    chain: str
    anchor: str
    neighbours: str
    scope: str
    exits: str


def digest(text: str) -> str:
    """A short hash of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def fingerprint(source: Source, form: Edit, hits: Sequence[Found]) -> Fingerprint:
    """The fingerprint of the places that an edit hits."""
    return Fingerprint(
        hits=len(hits),
        chain=digest("\n".join(map(_chain, hits))),
        anchor=digest("\n".join(map(_anchor, hits))),
        neighbours=digest("\n".join(map(_neighbours, hits))),
        scope=digest("\n".join(dump(place.node) for place in source.scopes[form.scope])),
        exits=digest(exits) if (exits := "\n".join(line for hit in hits for line in exits_before(hit.place))) else "",
    )


def _chain(hit: Found) -> str:
    return ";".join(f"{header_dump(owner)}/{part}" for owner, part in hit.place.chain)


def _anchor(hit: Found) -> str:
    """With the statement around an expression: the same call in a comprehension runs at another time."""
    parts = [hit.node] if hit.node is hit.place.node else [hit.node, hit.place.node]
    return ";".join(map(header_dump, parts))


def _neighbours(hit: Found) -> str:
    block, index = hit.place.block, hit.place.index
    beside = [*block[max(index - 1, 0) : index], None, *block[index + 1 : index + 2]]
    return ";".join("" if node is None else header_dump(node) for node in beside)
