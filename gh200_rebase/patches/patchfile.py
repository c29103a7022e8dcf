"""Reads `patches/NN-topic.toml` and rejects, all problems at once, what cannot be right in any upstream."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import Rejected
from .imports import unused_imports
from .patchmodel import CLASSES, COMMIT_ORDER, CONTRACTS, HAS, RISKS, Edit, Expect, FileCopy, Life, Patch
from .problems import Problems, check_only_if, check_path, check_strings, check_table, one_of
from .verbs import SCOPE_NAME, VERBS, contract_problem, problems_of, statements, tidy

__all__ = ["Edit", "Expect", "FileCopy", "Patch", "load_patches"]

FILE_NAME = re.compile(r"(\d\d)-([a-z0-9]+(?:-[a-z0-9]+)*)\.toml")
EDIT_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")

# key -> (type, required)
LIFE_KEYS = {"class": (str, False), "forwarded": (str, False), "retire_when": (str, False)}
PATCH_KEYS = LIFE_KEYS | {
    "number": (int, True),
    "topic": (str, True),
    "subject": (str, True),
    "why": (str, True),
    "risk": (str, True),
    "commit": (str, False),
    "imports": (str, False),
    "retired": (list, False),
    "edit": (list, False),
    "files": (list, False),
    "expect": (list, False),
    "workaround": (list, False),
}
WORKAROUND_KEYS = {"what": (str, True), "forwarded": (str, True), "retire_when": (str, True)}
VARIANT_KEYS = {
    "scope": (str, False),
    "anchor": (str, False),
    "code": (str, False),
    "verb": (str, False),
    "count": (int, False),
    "file": (str, False),
    **dict.fromkeys((*CONTRACTS, "stands_for"), (list, False)),
}
EDIT_KEYS = (
    VARIANT_KEYS
    | LIFE_KEYS
    | {
        "id": (str, True),
        "file": (str, True),
        "verb": (str, True),
        "code": (str, True),
        "why": (str, True),
        "only_if": (str, False),
        "requires": (list, False),
        "variant": (list, False),
    }
)
FILES_KEYS = {"from": (str, True), "to": (str, False), "exclude": (list, False), "committed": (bool, False)}
EXPECT_KEYS = {
    "file": (str, True),
    "name": (str, True),
    "args": (list, False),
    "only_if": (str, False),
    "why": (str, False),
    "stands_for": (list, False),
}


def load_patches(directory: Path) -> tuple[Patch, ...]:
    """All patches of a directory in commit order."""
    problems = Problems(directory.name)
    paths = sorted(directory.glob("*.toml"))
    if not paths:
        problems.add("no patch file in this directory")
    patches = [patch for path in paths if (patch := _load(path, Problems(path.name, problems.found)))]
    for number, times in Counter(patch.number for patch in patches).items():
        if times > 1:
            names = ", ".join(patch.path.name for patch in patches if patch.number == number)
            problems.add(f"number {number} is used by {names}")
    keys = {edit.key for patch in patches for edit in patch.edits}
    for edit in (edit for patch in patches for edit in patch.edits):
        for key in set(edit.requires) - keys:
            problems.add(f"edit {edit.key}: requires {key!r}, and there is no such edit")
    for number in {number for patch in patches for number in patch.retired} & {patch.number for patch in patches}:
        problems.add(f"number {number} is retired; a number is never used again")
    if problems.found:
        raise Rejected(
            f"{len(problems.found)} problem(s) in the patch files",
            where=str(directory),
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
    check_table(table, PATCH_KEYS, problems)
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
        edits=tuple(edit for entry in table.get("edit", ()) if (edit := _edit(table, entry, path, problems))),
        files=tuple(copy for entry in table.get("files", ()) if (copy := _copy(entry, problems.at("files")))),
        imports=_imports(table.get("imports", ""), problems.at("imports")),
        retired=tuple(table.get("retired", ())),
        life=_life(table, path.parent.parent, problems),
        workarounds=tuple(
            _life({"class": "workaround", **entry}, path.parent.parent, problems.at("workaround"))
            for entry in table.get("workaround", ())
            if check_table(entry, WORKAROUND_KEYS, problems.at("workaround"))
        ),
        expects=tuple(item for entry in table.get("expect", ()) if (item := _expect(entry, problems.at("expect")))),
    )
    # Names can be read only off code that parses.
    for statement in unused_imports(patch) if len(problems.found) == before else ():
        problems.add(f"imports: no edit of this patch uses {statement!r}")
    for name, times in Counter(edit.id for edit in patch.edits).items():
        if times > 1:
            problems.add(f"edit id {name!r} is used {times} times")
    return patch if len(problems.found) == before else None


def _check_header(path: Path, table: Mapping[str, Any], problems: Problems) -> None:
    if path.name != f"{table['number']:02d}-{table['topic']}.toml" or not FILE_NAME.fullmatch(path.name):
        problems.add(
            f"the file must be called NN-topic.toml, from number {table['number']} and topic {table['topic']!r}"
        )
    for key, allowed in (("risk", RISKS), ("commit", COMMIT_ORDER)):
        one_of(table.get(key, allowed[1]), allowed, key, problems)
    if "\n" in table["subject"].strip():
        problems.add("subject must be one line")


def _edit(table: Mapping[str, Any], entry: Any, path: Path, problems: Problems) -> Edit | None:
    number, head = table["number"], {key: table[key] for key in LIFE_KEYS if key in table}
    problems = problems.at(f"edit {entry.get('id', '?') if isinstance(entry, dict) else '?'}")
    if not check_table(entry, EDIT_KEYS, problems):
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
        stands_for=_stands_for(entry, problems),
        requires=tuple(key if "/" in key else f"{number:02d}/{key}" for key in entry.get("requires", ())),
        life=_life({**head, **entry}, path.parent.parent, problems) if LIFE_KEYS.keys() & entry.keys() else None,
        **_contracts(entry, problems),
    )
    check_only_if(main.only_if, problems)
    _check_form(main, problems)
    variants = []
    for index, variant in enumerate(entry.get("variant", ()), start=1):
        inner = problems.at(f"variant {index}")
        if check_table(variant, VARIANT_KEYS, inner):
            changed: dict[str, Any] = {key: tidy(value) if key == "code" else value for key, value in variant.items()}
            if "stands_for" in variant:
                changed["stands_for"] = _stands_for(variant, inner)
            form = replace(main, **changed | _contracts(variant, inner))
            _check_form(form, inner)
            variants.append(form)
    return replace(main, variants=tuple(variants))


def _life(entry: Mapping[str, Any], root: Path, problems: Problems) -> Life:
    life = Life(
        entry.get("class", "integration"),
        entry.get("forwarded", "no"),
        entry.get("retire_when", ""),
        entry.get("what", ""),
    )
    one_of(life.kind, CLASSES, "class", problems)
    is_path = life.forwarded not in ("no", "not-needed") and not life.forwarded.startswith("https://")
    if is_path and not (root / life.forwarded).is_file():
        problems.add(f"forwarded: there is no report {life.forwarded!r}; or write no, not-needed or an address")
    if life.retire_when.startswith(HAS):
        if problem := contract_problem("after_every", life.retire_when.removeprefix(HAS)):
            problems.add(f"retire_when: {problem}")
    elif life.retire_when and not (root / life.retire_when).is_file():
        problems.add(f"retire_when: there is no script {life.retire_when!r}; or write {HAS}PATTERN")
    if life.kind != "integration" and (life.forwarded == "no" or not life.retire_when):
        problems.add(f"a {life.kind} needs forwarded and retire_when")
    return life


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
    check_path(form.file, "file", problems)
    if form.count < 1:
        problems.add("count must be 1 or more")
    if one_of(form.verb, tuple(VERBS), "verb", problems):
        for text in problems_of(form):
            problems.add(text)


def _contracts(entry: Mapping[str, Any], problems: Problems) -> dict[str, Any]:
    found = {key: entry[key] for key in CONTRACTS if key in entry}
    good = [key for key, values in found.items() if check_strings(values, key, problems)]
    for key in good:
        for value in found[key]:
            if problem := contract_problem(key, value):
                problems.add(f"{key}: {problem}")
    return {key: tuple(found[key]) for key in good}


def _stands_for(entry: Mapping[str, Any], problems: Problems) -> tuple[str, ...]:
    names = entry.get("stands_for", [])
    if not check_strings(names, "stands_for", problems):
        return ()
    for name in names:
        if not SCOPE_NAME.fullmatch(name):
            problems.add(f"stands_for: {name!r} is not a dotted name")
    return tuple(names)


def _copy(entry: Any, problems: Problems) -> FileCopy | None:
    if not check_table(entry, FILES_KEYS, problems):
        return None
    source, exclude = entry["from"], entry.get("exclude", [])
    target = entry.get("to", source)
    check_path(source, "from", problems)
    check_path(target, "to", problems)
    check_strings(exclude, "exclude", problems)
    return FileCopy(source, target, tuple(exclude), entry.get("committed", False))


def _expect(entry: Any, problems: Problems) -> Expect | None:
    if not check_table(entry, EXPECT_KEYS, problems):
        return None
    check_path(entry["file"], "file", problems)
    check_only_if(entry.get("only_if", ""), problems)
    check_strings(entry.get("args", []), "args", problems)
    if not SCOPE_NAME.fullmatch(entry["name"]):
        problems.add(f"name {entry['name']!r} is not a dotted name")
    stands_for = _stands_for(entry, problems)
    if stands_for and not entry.get("why"):
        problems.add(f"expect {entry['name']}: stands_for needs a why")
    return Expect(
        entry["file"],
        entry["name"],
        tuple(entry.get("args", ())),
        entry.get("only_if", ""),
        entry.get("why", "").strip(),
        stands_for,
    )
