"""The page of an acceptance run for people: the machine, every claim with expected beside seen, step times, one line."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping
from typing import TextIO

from ..facts import Facts
from ..print import LABEL, NARROWEST, PLAIN_WIDTH, fact_rows, painted, row, wants_colour
from .claims import CLAIMS, NOT_TESTED, REFUTED, SHOWN, VERDICTS, Answer
from .trainings import Trained

COLOURS = {SHOWN: "32", REFUTED: "31", NOT_TESTED: "2"}


def print_page(facts: Facts, answers: Mapping[str, Answer], trained: list[Trained], stream: TextIO) -> None:
    colour = wants_colour(stream)
    width = max(NARROWEST, shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns) if stream.isatty() else PLAIN_WIDTH
    print(painted("Facts", "1", colour), file=stream)
    for label, text in fact_rows(facts):
        row(f"  {label:<{LABEL}}", text, width, stream)
    part, indent = "", " " * 14
    for claim in CLAIMS:
        if claim.part != part:
            part = claim.part
            print("\n" + painted(part[0].upper() + part[1:], "1", colour), file=stream)
        answer = answers[claim.id]
        head = f"  {answer.verdict:<12}"
        mark = head.replace(answer.verdict, painted(answer.verdict, COLOURS[answer.verdict], colour), 1)
        row(head, f"{claim.text} ({claim.id})", width, stream, mark)
        if answer.expected:
            row(f"{indent}expected: ", answer.expected, width, stream)
        row(f"{indent}seen: ", answer.seen, width, stream)
    _steps(trained, width, stream, colour)
    print(file=stream)


def _steps(trained: list[Trained], width: int, stream: TextIO, colour: bool) -> None:
    if not trained:
        return
    print("\n" + painted("Step times", "1", colour), file=stream)
    for one in trained:
        times = " ".join(f"{seconds:.2f}" for seconds in one.step_seconds) or "none"
        row(f"  {one.name:<22}", f"{times} s; the whole run {one.seconds:.0f} s", width, stream)


def summary(answers: Mapping[str, Answer], ended: str, report: str) -> str:
    counts = Counter(answer.verdict for answer in answers.values())
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)
    refuted = [answer.claim for answer in answers.values() if answer.verdict == REFUTED]
    first = f"; refuted: {', '.join(refuted)}" if refuted else ""
    return f"GH200 acceptance: {told}{first}{f'; {ended}' if ended else ''}. Report: {report}"
