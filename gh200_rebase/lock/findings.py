"""Findings that were made before, kept in one file below build/: by unit, and by what the unit looked at."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable

from ..errors import Refused
from ..project import Project
from .units import Finding, MarkedTree, Unit

_TABLES = """
create table if not exists shape (unit text, upstream text, overlay text, primary key (unit, upstream, overlay));
create table if not exists finding (key text primary key, result text);
"""
_ABSENT = "-"

Paths = tuple[str, ...]


class Findings:
    """A unit looks at the paths of one of its known shapes; equal content there means an equal finding."""

    def __init__(self, project: Project) -> None:
        self.path = project.build / "matrix" / "findings.sqlite"
        self.overlay = project.overlay
        self._ours: dict[str, str] = {}
        self._results: dict[str, str] = {}
        self._parsed: dict[str, Finding] = {}
        self._shapes: dict[str, list[tuple[Paths, str]]] = {}
        self._base = self._open()

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return self._read()
        except sqlite3.DatabaseError:
            # Damaged, for instance by a full disk: all of it can be found again.
            self.path.unlink(missing_ok=True)
            return self._read()

    def _read(self) -> sqlite3.Connection:
        base = sqlite3.connect(self.path, timeout=60)
        base.execute("pragma journal_mode=wal")
        base.execute("pragma synchronous=normal")
        base.executescript(_TABLES)
        self._results = dict(base.execute("select key, result from finding"))
        for unit, upstream, overlay in base.execute("select unit, upstream, overlay from shape"):
            self._learn(unit, tuple(json.loads(upstream)), tuple(json.loads(overlay)))
        return base

    def close(self) -> None:
        self._base.close()

    def _learn(self, unit: str, upstream: Paths, overlay: Paths) -> str:
        seen = "\0".join(self._mark(path) for path in overlay)
        prefix = hashlib.sha256("\n".join((unit, *upstream, "", *overlay, seen)).encode()).hexdigest()
        shapes = self._shapes.setdefault(unit, [])
        if (upstream, prefix) not in shapes:
            shapes.append((upstream, prefix))
        return prefix

    def _mark(self, path: str) -> str:
        if path not in self._ours:
            data = self.overlay.read(path) if path else "\n".join(self.overlay.paths()).encode()
            there = hashlib.sha256(data).hexdigest() if data is not None else _ABSENT
            self._ours[path] = there + str(self.overlay.has_folder(path))
        return self._ours[path]

    def keys(self, unit: Unit, mark: Callable[[str], str]) -> list[str]:
        """Under which names a finding about this content may be kept, one per shape."""
        return [_name(prefix, paths, mark) for paths, prefix in self._shapes.get(unit.key, ())]

    def look_up(self, unit: Unit, tree: MarkedTree) -> Finding | None:
        for key in self.keys(unit, tree.mark):
            if key in self._results:
                if key not in self._parsed:
                    self._parsed[key] = Finding.from_text(self._results[key])
                return self._parsed[key]
        return None

    def keep(self, unit: Unit, tree: MarkedTree, made: tuple[Finding, Paths, Paths]) -> None:
        finding, upstream, overlay = made
        prefix = self._learn(unit.key, upstream, overlay)
        key, result = _name(prefix, upstream, tree.mark), finding.as_text()
        self._results[key] = result
        try:
            with self._base:
                shape = (unit.key, json.dumps(upstream), json.dumps(overlay))
                self._base.execute("insert or ignore into shape values (?, ?, ?)", shape)
                self._base.execute("insert or replace into finding values (?, ?)", (key, result))
        except sqlite3.OperationalError as error:
            raise Refused(
                "A finding cannot be kept",
                where=str(self.path),
                why=str(error),
                fix="free some space on that disk; what was found before is kept, the same command goes on from there",
            ) from error


def _name(prefix: str, paths: Paths, mark: Callable[[str], str]) -> str:
    return hashlib.sha256("\n".join((prefix, *map(mark, paths))).encode()).hexdigest()
