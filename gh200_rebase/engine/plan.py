"""What was found out about each edit, and the bytes that follow from it."""

from __future__ import annotations

from dataclasses import dataclass

from ..patches.patchmodel import Edit
from ..syntax.splice import Splice
from .fingerprint import Fingerprint


@dataclass(frozen=True)
class Hit:
    """Where an edit lands: the anchor's line, the line its text is put before or into, and that text."""

    file: str
    line: int
    scope: str
    insert_line: int
    inserted: tuple[str, ...]


@dataclass(frozen=True)
class EditResult:
    """What became of one edit: its status, the form used, its hits."""

    edit: Edit
    form: Edit
    variant: int
    status: str
    hits: tuple[Hit, ...]
    detail: str
    fingerprint: Fingerprint | None


@dataclass(frozen=True)
class Plan:
    """Results in commit order; `contents` per patch number is cumulative."""

    results: tuple[EditResult, ...]
    contents: dict[int, dict[str, bytes]]
    final: dict[str, bytes]
    splices: dict[str, tuple[Splice, ...]]
    half_applied: bool

    def _with(self, status: str) -> tuple[EditResult, ...]:
        return tuple(result for result in self.results if result.status == status)

    @property
    def applied(self) -> tuple[EditResult, ...]:
        """Edits that landed."""
        return self._with("applied")

    @property
    def already(self) -> tuple[EditResult, ...]:
        """Edits whose code is in this upstream."""
        return self._with("already")

    @property
    def skipped(self) -> tuple[EditResult, ...]:
        """Edits whose only_if does not hold."""
        return self._with("skipped")

    @property
    def failed(self) -> tuple[EditResult, ...]:
        """Edits without a place."""
        return self._with("failed")
