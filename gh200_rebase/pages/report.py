"""What people read: tables of edits and releases, explanations of one patch, unified diffs."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from ..errors import Rejected
from ..lock.assess import Assessment
from ..lock.drift import REVIEW
from ..lock.lifecycle import CAN_GO, Verdict
from ..patches.patchfile import Patch
from ..syntax.tree import Tree
from ..text import table


def edits_table(assessment: Assessment, *, noted_only: bool = False) -> str:
    """Where each edit lands; only those with something to say, empty where there is none."""
    drift = {item.edit_key: item for item in assessment.drift}
    rows = []
    for result in assessment.plan.results:
        verdict = result.status if not result.variant else f"{result.status} (variant {result.variant})"
        note = drift.get(result.edit.key)
        if note:
            verdict += f", {note.level}: {note.what}"
        lines = ",".join(str(hit.line) for hit in result.hits) or "-"
        short = result.form.file.removeprefix("simpletuner/")
        if verdict != "applied" or not noted_only:
            rows.append((result.edit.label, short, result.form.scope or "(module)", lines, verdict))
    if noted_only and not rows:
        return ""
    return table(("edit", "file (in simpletuner/)", "scope", "line", "verdict"), rows)


def summary(assessment: Assessment) -> str:
    """Counts of edits, proofs, interfaces and drift."""
    plan = assessment.plan
    applied = sum(result.status == "applied" for result in plan.results)
    proofs = sum(proof.ok for proof in assessment.proofs)
    names = sum(item.ok for item in assessment.interfaces)
    levels = [drift.level for drift in assessment.drift]
    lines = [
        f"upstream    {assessment.label}",
        f"edits       {applied} applied, {len(plan.skipped)} skipped, {len(plan.failed)} failed",
        f"proofs      {proofs} of {len(assessment.proofs)} hold",
        f"interfaces  {names} of {len(assessment.interfaces)} upstream names are as the overlay uses them",
        f"drift       {levels.count(REVIEW)} to review, {levels.count('warning')} warnings, {levels.count('info')} notes",
    ]
    if assessment.violations:
        lines.append(f"contracts   {len(assessment.violations)} do not hold")
    lines += [f"skipped     {result.edit.key}: {result.detail}" for result in plan.skipped]
    return "\n".join(lines)


def explain(patch: Patch, assessment: Assessment, tree: Tree, around: int = 3) -> str:
    """What each edit of a patch does and where it lands in this upstream."""
    wrong = wrong_with(patch, assessment)
    parts = [*(f"WRONG {line}" for line in wrong), *([""] if wrong else [])]
    parts += [f"{patch.name}: {patch.subject}", f"risk: {patch.risk}", "", patch.why.strip()]
    drift = {item.edit_key: item for item in assessment.drift}
    for result in assessment.plan.results:
        if result.edit.patch != patch.number:
            continue
        parts += ["", f"--- {result.edit.key}: {result.edit.verb} in {result.form.scope or 'module'}", result.edit.why]
        if result.edit.key in drift:
            parts.append(f"drift ({drift[result.edit.key].level}): {drift[result.edit.key].what}")
        if result.status == "failed":
            parts.append("no place found: see above, and the proposals below")
            continue
        if not result.hits:
            parts.append(f"{result.status}: {result.detail}")
        for hit in result.hits:
            parts += [f"{hit.file}:{hit.line}", *_hunk(assessment, tree, hit.file, hit.insert_line, around)]
    for copy in patch.files:
        parts += ["", f"--- copies {copy.source} -> {copy.target}"]
    return "\n".join(parts)


def wrong_with(patch: Patch, assessment: Assessment) -> list[str]:
    """What keeps this patch from being applied: failures first, then broken contracts, then what needs a review."""
    own = f"{patch.number:02d}/"
    declared = f"{patch.path.name}, expect "
    return [
        *(line for line in assessment.failures if line.startswith((own, patch.path.name, declared))),
        *(f"{v.edit_key} ({v.file}:{v.line}): {v.what}" for v in assessment.violations if v.edit_key.startswith(own)),
        *(
            f"{d.edit_key} ({d.file}:{d.line}): to review: {d.what}"
            for d in assessment.to_review
            if d.edit_key.startswith(own) or declared in d.what
        ),
    ]


def retire_table(label: str, verdicts: Sequence[Verdict]) -> str:
    """What can go, what cannot, and why."""
    rows = [(v.what, v.life.kind, v.life.forwarded, v.result, v.detail[:90]) for v in verdicts]
    gone = [v.what for v in verdicts if v.result == CAN_GO]
    total = f"on {label}: {len(gone)} of {len(verdicts)} can go" + (f": {', '.join(gone)}" if gone else "")
    return f"{table(('what', 'class', 'forwarded', 'result', 'detail'), rows)}\n\n{total}"


def _hunk(assessment: Assessment, tree: Tree, path: str, near: int, around: int) -> list[str]:
    """The one hunk of this file's diff that holds the hit."""
    hunks = unified_diff(path, tree.read(path) or b"", assessment.plan.final[path], around).split("\n@@ ")[1:]
    starts = [abs(int(hunk.split(" ")[0].lstrip("-").split(",")[0]) + around - near) for hunk in hunks]
    if not starts:
        return []
    return ["    " + line for line in hunks[starts.index(min(starts))].splitlines()[1:]]


def unified_diff(path: str, before: bytes, after: bytes, around: int = 3) -> str:
    """One file's change as a unified diff."""
    old, new = (data.decode("utf-8", "surrogateescape").splitlines(keepends=True) for data in (before, after))
    lines = difflib.unified_diff(old, new, f"a/{path}", f"b/{path}", n=around)
    return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)


def export(patches: Sequence[Patch], assessment: Assessment, tree: Tree, into: Path) -> list[Path]:
    """One unified diff per patch, for reading."""
    try:
        into.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Rejected("The directory for the diffs cannot be made", where=str(into), why=str(error)) from error
    current: dict[str, bytes] = {}
    written = []
    for patch in patches:
        after = assessment.plan.contents.get(patch.number, {})
        chunks = []
        for path in sorted(after):
            before = current.get(path, tree.read(path) or b"")
            chunks.append(unified_diff(path, before, after[path]))
            current[path] = after[path]
        if chunks:
            target = into / f"{patch.name}.diff"
            target.write_bytes("".join(chunks).encode("utf-8", "surrogateescape"))
            written.append(target)
    return written
