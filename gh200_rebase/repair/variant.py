"""Writes a proposal into its patch file: a new table after the edit's own, every other byte as it was."""

from __future__ import annotations

import json
import re
from pathlib import Path

from ..errors import Rejected
from ..patches.patchfile import load_patches
from ..system.durable import write_atomic
from .propose import Proposal, changed_keys

_TABLE = re.compile(r"^\[\[(?!edit\.variant\]\])", re.MULTILINE)


def as_toml(proposal: Proposal) -> str:
    """The ready [[edit.variant]], with what a reader must know about it."""
    lines = ["[[edit.variant]]"]
    lines += [f"# Left out, because the scope has nothing to compare with: {text}" for text in proposal.dropped]
    lines += [f"# NOT PROVED: {' '.join(text.split())}" for text in proposal.problems]
    lines += [f"{name} = {_value(value)}" for name, value in changed_keys(proposal).items()]
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, str) and "\n" in value and '"""' not in value and "\\" not in value:
        return f'"""\n{value}\n"""'
    # A JSON string is a TOML string.
    return json.dumps(value, ensure_ascii=False)


def write_variant(path: Path, proposal: Proposal) -> None:
    """Insert it and read the file back; a file that would not load is left as it was."""
    before = path.read_bytes()
    text = before.decode("utf-8")
    head = re.search(rf'^id\s*=\s*["\']{re.escape(proposal.edit.id)}["\']\s*(#.*)?$', text, re.MULTILINE)
    if head is None:
        raise Rejected(f"The edit {proposal.edit.key} was not found in its file", where=str(path), fix="add it by hand")
    following = _TABLE.search(text, head.end())
    at = following.start() if following else len(text)
    made = text[:at].rstrip("\n") + "\n\n" + as_toml(proposal) + ("\n" + text[at:] if following else "")
    write_atomic(path, made.encode(), path.stat().st_mode & 0o777)
    try:
        load_patches(path.parent)
    except Rejected as error:
        write_atomic(path, before, path.stat().st_mode & 0o777)
        raise Rejected(
            f"The proposal for {proposal.edit.key} cannot be written",
            where=str(path),
            why=error.why,
            fix="add it by hand",
        ) from error
