"""What a patch file says, as values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

COMMIT_ORDER = ("first", "normal", "last")
RISKS = ("low", "medium", "high")
CONTRACTS = ("after_every", "before_any", "last_stored", "stored_once")
"""What an edit may state about its place besides that it is reached, which is always proved."""


CLASSES = ("integration", "workaround", "backport")
HAS = "has:"
"""Prefix of a `retire_when` that is a pattern: what upstream must have, to no longer need the edit."""


@dataclass(frozen=True)
class Life:
    """Why something of ours exists, who was informed (as in Debian's DEP-3), and the test that it is not needed any more."""

    kind: str = "integration"
    forwarded: str = "no"
    retire_when: str = ""
    what: str = ""
    """Of a workaround inside our package: the module that goes."""


@dataclass(frozen=True)
class Edit:
    """One change of one upstream file. `variants` are complete forms, tried in order when this one does not fit."""

    patch: int
    id: str
    file: str
    scope: str
    verb: str
    anchor: str
    code: str
    count: int
    why: str
    only_if: str
    variants: tuple[Edit, ...] = ()
    after_every: tuple[str, ...] = ()
    before_any: tuple[str, ...] = ()
    last_stored: tuple[str, ...] = ()
    stored_once: tuple[str, ...] = ()
    stands_for: tuple[str, ...] = ()
    """Functions of the same file that our code repeats, replaces, wraps or bypasses; their bodies are in the lock."""

    requires: tuple[str, ...] = ()
    """Keys of edits without which this one must not be applied."""
    life: Life | None = None
    """None: as its patch."""

    @property
    def key(self) -> str:
        """Patch number and id, unique among all edits."""
        return f"{self.patch:02d}/{self.id}"

    @property
    def label(self) -> str:
        """The key as a table shows it beside the file."""
        return self.key.partition(" into ")[0]

    def forms(self) -> tuple[Edit, ...]:
        """The edit itself and its variants."""
        return (self, *self.variants)


@dataclass(frozen=True)
class FileCopy:
    """A file or directory of ours that is copied into the fork; `committed` leaves out what an operator put beside it."""

    source: str
    target: str
    exclude: tuple[str, ...]
    committed: bool = False


@dataclass(frozen=True)
class Expect:
    """An upstream name the overlay relies on beyond what its imports show."""

    file: str
    name: str
    args: tuple[str, ...]
    only_if: str
    why: str
    stands_for: tuple[str, ...] = ()
    """As of an edit, by what our code does at run time."""


@dataclass(frozen=True)
class Patch:
    """A numbered patch: becomes one commit of the fork."""

    number: int
    topic: str
    subject: str
    why: str
    risk: str
    commit: str
    path: Path
    edits: tuple[Edit, ...]
    files: tuple[FileCopy, ...]
    expects: tuple[Expect, ...]
    imports: tuple[str, ...] = ()
    """One import each; a file gets those whose name an edit of this patch uses there."""
    retired: tuple[int, ...] = ()
    """Numbers of patches that went into this one."""
    life: Life = Life()
    workarounds: tuple[Life, ...] = ()
    """Faults of upstream that code of ours in this patch works around, besides its edits."""

    @property
    def name(self) -> str:
        """NN-topic."""
        return f"{self.number:02d}-{self.topic}"

    @property
    def order(self) -> tuple[int, int]:
        """The position of its commit."""
        return COMMIT_ORDER.index(self.commit), self.number
