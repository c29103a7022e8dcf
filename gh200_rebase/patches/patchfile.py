"""Reads `patches/NN-topic.toml` and refuses, all problems at once, what cannot be right in any upstream."""

from __future__ import annotations

import ast
import difflib
import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import Refused
from .imports import unused_imports
from .patchmodel import COMMIT_ORDER, RISKS, Edit, Expect, FileCopy, Patch
from .verbs import SCOPE_NAME, VERBS, problems_of, statements, tidy

__all__ = ["Edit", "Expect", "FileCopy", "Patch", "load_patches"]

FILE_NAME = re.compile(r"(\d\d)-([a-z0-9]+(?:-[a-z0-9]+)*)\.toml")
EDIT_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")

# key -> (type, required)
PATCH_KEYS = {
    "number": (int, True),
    "topic": (str, True),
    "subject": (str, True),
    "why": (str, True),
    "risk": (str, True),
    "commit": (str, False),
    "imports": (str, False),
    "edit": (list, False),
    "files": (list, False),
    "expect": (list, False),
}
VARIANT_KEYS = {
    "scope": (str, False),
    "anchor": (str, False),
    "code": (str, False),
    "verb": (str, False),
    "count": (int, False),
    "file": (str, False),
}
EDIT_KEYS = VARIANT_KEYS | {
    "id": (str, True),
    "file": (str, True),
    "verb": (str, True),
    "code": (str, True),
    "why": (str, True),
    "only_if": (str, False),
    "variant": (list, False),
}
FILES_KEYS = {"from": (str, True), "to": (str, False), "exclude": (list, False)}
EXPECT_KEYS = {
    "file": (str, True),
    "name": (str, True),
    "args": (list, False),
    "only_if": (str, False),
    "why": (str, False),
}


@dataclass
class Problems:
    """Collects sentences; `at` gives a view that prefixes them with a place."""

    place: str
    found: list[str] = field(default_factory=list)

    def at(self, place: str) -> Problems:
        return Problems(f"{self.place}: {place}", self.found)

    def add(self, text: str) -> None:
        self.found.append(f"{self.place}: {text}")


def load_patches(folder: Path) -> tuple[Patch, ...]:
    """All patches of a folder in commit order."""
    problems = Problems(folder.name)
    paths = sorted(folder.glob("*.toml"))
    if not paths:
        problems.add("no patch file in this folder")
    patches = [patch for path in paths if (patch := _load(path, Problems(path.name, problems.found)))]
    for number, times in Counter(patch.number for patch in patches).items():
        if times > 1:
            names = ", ".join(patch.path.name for patch in patches if patch.number == number)
            problems.add(f"number {number} is used by {names}")
    if problems.found:
        raise Refused(
            f"{len(problems.found)} problem(s) in the patch files",
            where=str(folder),
            why="\n".join(problems.found),
            fix="correct the lines named above; no upstream was read",
        )
    return tuple(sorted(patches, key=lambda patch: patch.order))


def _load(path: Path, problems: Problems) -> Patch | None:
    before = len(problems.found)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        problems.add(f"cannot be read: {error}")
        return None
    _check_table(table, PATCH_KEYS, problems)
    if len(problems.found) > before:
        return None
    _check_header(path, table, problems)
    number = table["number"]
    patch = Patch(
        number=number,
        topic=table["topic"],
        subject=table["subject"].strip(),
        why=table["why"].strip(),
        risk=table["risk"],
        commit=table.get("commit", "normal"),
        path=path,
        edits=tuple(edit for entry in table.get("edit", ()) if (edit := _edit(number, entry, problems))),
        files=tuple(copy for entry in table.get("files", ()) if (copy := _copy(entry, problems.at("files")))),
        imports=_imports(table.get("imports", ""), problems.at("imports")),
        expects=tuple(item for entry in table.get("expect", ()) if (item := _expect(entry, problems.at("expect")))),
    )
    # Names can be read only off code that parses.
    for statement in unused_imports(patch) if len(problems.found) == before else ():
        problems.add(f"imports: no edit of this patch uses {statement!r}")
    for name, times in Counter(edit.id for edit in patch.edits).items():
        if times > 1:
            problems.add(f"edit id {name!r} is used {times} times")
    return patch if len(problems.found) == before else None


def _check_table(table: Any, keys: Mapping[str, tuple[type, bool]], problems: Problems) -> bool:
    if not isinstance(table, dict):
        problems.add("must be a table")
        return False
    before = len(problems.found)
    for key, value in table.items():
        if key not in keys:
            near = difflib.get_close_matches(key, keys, n=1, cutoff=0.0)[0]
            problems.add(f"unknown key {key!r}; did you mean {near!r}?")
        elif not isinstance(value, keys[key][0]) or isinstance(value, bool):
            problems.add(f"{key} must be of type {keys[key][0].__name__}")
        elif keys[key][1] and value == "":
            problems.add(f"{key} is empty")
    for key in (key for key, (_, required) in keys.items() if required and key not in table):
        problems.add(f"key {key!r} is missing")
    return len(problems.found) == before


def _check_header(path: Path, table: Mapping[str, Any], problems: Problems) -> None:
    if path.name != f"{table['number']:02d}-{table['topic']}.toml" or not FILE_NAME.fullmatch(path.name):
        problems.add(
            f"the file must be called NN-topic.toml, from number {table['number']} and topic {table['topic']!r}"
        )
    for key, allowed in (("risk", RISKS), ("commit", COMMIT_ORDER)):
        _one_of(table.get(key, allowed[1]), allowed, key, problems)
    if "\n" in table["subject"].strip():
        problems.add("subject must be one line")


def _one_of(value: str, allowed: Sequence[str], key: str, problems: Problems) -> bool:
    if value not in allowed:
        problems.add(f"{key} {value!r} must be one of {', '.join(allowed)}")
    return value in allowed


def _edit(number: int, entry: Any, problems: Problems) -> Edit | None:
    problems = problems.at(f"edit {entry.get('id', '?') if isinstance(entry, dict) else '?'}")
    if not _check_table(entry, EDIT_KEYS, problems):
        return None
    if not EDIT_ID.fullmatch(entry["id"]):
        problems.add("id must be of the form [a-z0-9-]")
    main = Edit(
        patch=number,
        id=entry["id"],
        file=entry["file"],
        scope=entry.get("scope", ""),
        verb=entry["verb"],
        anchor=entry.get("anchor", ""),
        code=tidy(entry["code"]),
        count=entry.get("count", 1),
        why=entry["why"].strip(),
        only_if=entry.get("only_if", ""),
    )
    _check_only_if(main.only_if, problems)
    _check_form(main, problems)
    variants = []
    for index, variant in enumerate(entry.get("variant", ()), start=1):
        inner = problems.at(f"variant {index}")
        if _check_table(variant, VARIANT_KEYS, inner):
            changed: dict[str, Any] = {key: tidy(value) if key == "code" else value for key, value in variant.items()}
            form = replace(main, **changed)
            _check_form(form, inner)
            variants.append(form)
    return replace(main, variants=tuple(variants))


def _imports(text: str, problems: Problems) -> tuple[str, ...]:
    try:
        found = statements(tidy(text))
    except (SyntaxError, ValueError) as error:
        problems.add(f"not Python: {error}")
        return ()
    if not all(isinstance(node, ast.Import | ast.ImportFrom) and len(node.names) == 1 for node in found):
        problems.add("must be imports of one name each")
        return ()
    return tuple(ast.unparse(node) for node in found)


def _check_form(form: Edit, problems: Problems) -> None:
    _check_path(form.file, "file", problems)
    if form.count < 1:
        problems.add("count must be 1 or more")
    if _one_of(form.verb, tuple(VERBS), "verb", problems):
        for text in problems_of(form):
            problems.add(text)


def _check_only_if(text: str, problems: Problems) -> None:
    if text.startswith("exists:"):
        _check_path(text.removeprefix("exists:"), "only_if", problems)
    elif text and not SCOPE_NAME.fullmatch(text):
        problems.add(f"only_if {text!r} is neither a dotted name nor exists:PATH")


def _check_path(text: str, key: str, problems: Problems) -> None:
    path = PurePosixPath(text)
    if not text or path.is_absolute() or ".." in path.parts or "\\" in text or str(path) != text:
        problems.add(f"{key} {text!r} must be a plain relative path")


def _copy(entry: Any, problems: Problems) -> FileCopy | None:
    if not _check_table(entry, FILES_KEYS, problems):
        return None
    source, exclude = entry["from"], entry.get("exclude", [])
    target = entry.get("to", source)
    _check_path(source, "from", problems)
    _check_path(target, "to", problems)
    _check_strings(exclude, "exclude", problems)
    return FileCopy(source, target, tuple(exclude))


def _expect(entry: Any, problems: Problems) -> Expect | None:
    if not _check_table(entry, EXPECT_KEYS, problems):
        return None
    _check_path(entry["file"], "file", problems)
    _check_only_if(entry.get("only_if", ""), problems)
    _check_strings(entry.get("args", []), "args", problems)
    if not SCOPE_NAME.fullmatch(entry["name"]):
        problems.add(f"name {entry['name']!r} is not a dotted name")
    return Expect(
        entry["file"], entry["name"], tuple(entry.get("args", ())), entry.get("only_if", ""), entry.get("why", "")
    )


def _check_strings(values: list[Any], key: str, problems: Problems) -> None:
    if not all(isinstance(value, str) for value in values):
        problems.add(f"{key} must be a list of strings")
