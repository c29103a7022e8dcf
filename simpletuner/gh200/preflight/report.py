"""What a preflight found: problems stop a run, warnings and notes do not; as a page, and as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ..errors import GH200Error

Kind = Literal["problems", "warnings", "notes", "not_checked"]
SHOWN_NAMES = 5
SHOWN_PROBLEMS = 40


@dataclass
class Report:
    """Collected while the checks run; all problems at once."""

    config: str
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def problem(self, found: Iterable[object]) -> None:
        """Adds problems."""
        for item in found:
            self.add("problems", item)

    def add(self, kind: Kind, text: object) -> None:
        """Several checks may find the same."""
        texts: list[str] = getattr(self, kind)
        if str(text) not in texts:
            texts.append(str(text))

    def show(self, name: str, text: str) -> None:
        """A line for people."""
        self.facts.setdefault("told", {})[name] = text

    def as_json(self) -> dict[str, Any]:
        """The report as `--json` prints it."""
        return {"config": self.config, "ok": not self.problems, **asdict(self)}

    def lines(self) -> list[str]:
        """The report as a page."""
        indented = {name: text.replace("\n", f"\n{'':14}") for name, text in self.facts.get("told", {}).items()}
        found = [f"  {name:<11} {text}" for name, text in indented.items()]
        for title, items in (("not checked", self.not_checked), ("note", self.notes), ("warning", self.warnings)):
            found += [f"  {title}: {item}" for item in items]
        found += [f"  problem: {item}" for item in self.problems]
        verdict = f"cannot work: {many(len(self.problems), 'problem')}" if self.problems else "can be started"
        return [f"{self.config} {verdict}", *found]


class PreflightError(GH200Error):
    """A training that cannot work, stopped before anything is loaded."""

    def __init__(self, report: Report) -> None:
        hidden = len(report.problems) - SHOWN_PROBLEMS
        more = [f"and {hidden} more: python -m simpletuner.gh200.preflight CONFIG names all"] if hidden > 0 else []
        super().__init__(
            f"This training cannot work: {many(len(report.problems), 'problem')}, found before anything is loaded.",
            where=report.config,
            why="\n".join([*report.problems[:SHOWN_PROBLEMS], *more]),
            fix="correct them in the config; python -m simpletuner.gh200.preflight CONFIG checks it again in seconds. "
            'If preflight is wrong, "gh200_optimizations": {"preflight": false} starts without it, and please report it',
        )


def many(count: int, what: str) -> str:
    """A count with its noun."""
    return f"{count} {what}{'s' * (count != 1)}"


def some(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - SHOWN_NAMES} more" if len(listed) > SHOWN_NAMES else ""
    return ", ".join(listed[:SHOWN_NAMES]) + more
