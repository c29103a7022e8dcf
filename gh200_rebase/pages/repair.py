"""Old beside new: what a place looked like when it was last verified, and what it looks like now."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from ..repair.candidates import Site
from ..repair.propose import Proposal, changed_keys
from ..repair.variant import as_toml

WIDTH, AROUND = 62, 5


def beside(old: Site | None, new: Site | None) -> str:
    """Two columns, the anchored line marked; a side that is not known says so."""
    left, right = (_column(site) for site in (old, new))
    heads = [_head("last verified", old), _head("now", new)]
    rows = [heads, ["-" * WIDTH] * 2, *([a or "", b or ""] for a, b in zip_longest(left, right))]
    return "\n".join(f"{one[:WIDTH]:<{WIDTH}} | {other[:WIDTH]}".rstrip() for one, other in rows)


def _head(word: str, site: Site | None) -> str:
    if site is None:
        return f"{word}: not known"
    return f"{word}: {site.source.path.rsplit('/', 1)[-1]}:{site.line} in {site.scope or 'module'}"


def _column(site: Site | None) -> list[str]:
    if site is None:
        return []
    first = max(site.line - AROUND, 1)
    shown = site.source.lines[first - 1 : site.line + AROUND]
    indent = min((len(line) - len(line.lstrip()) for line in shown if line.strip()), default=0)
    return [
        f"{'>' if number == site.line else ' '}{number:>5} {line.rstrip()[indent:]}"
        for number, line in enumerate(shown, start=first)
    ]


def proposals(found: dict[str, list[Proposal]]) -> str:
    """Every proposal of every edit, the first one in full."""
    parts: list[str] = []
    for key, ranked in found.items():
        parts += ["", f"=== {key}: {len(ranked) or 'no'} place(s) proposed"]
        if not ranked:
            parts.append("nothing in this upstream looks like it; adapt the edit by hand, or give it an only_if")
            continue
        parts += [_described(ranked[0]), beside(ranked[0].old, ranked[0].new), "", as_toml(ranked[0]).rstrip()]
        parts += [f"  also {_described(other)}" for other in ranked[1:]]
    return "\n".join(parts)


def _described(one: Proposal) -> str:
    state = "all proofs hold" if one.proved else f"not proved: {' '.join(one.problems[0].split())[:140]}"
    return f"{one.form.file}:{one.new.line} in {one.form.scope or 'module'} (likeness {one.score:.1f}; {state})"


def summary(found: dict[str, list[Proposal]], written: Sequence[str]) -> str:
    """How many edits have a proved proposal, and what was written."""
    proved = sum(bool(ranked) and ranked[0].proved for ranked in found.values())
    counted = f"{proved} of {len(found)} edits have a proposal that passes all proofs"
    return "\n".join([counted, *(f"written: {name}" for name in written)])


def as_json(one: Proposal) -> dict[str, object]:
    """One proposal as --json writes it."""
    return {
        "file": one.form.file,
        "scope": one.form.scope,
        "line": one.new.line,
        "likeness": round(one.score, 2),
        "proved": one.proved,
        "problems": one.problems,
        "variant": changed_keys(one),
    }
