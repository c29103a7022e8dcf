"""All checks in the order of the page, and how they are run."""

from __future__ import annotations

from dataclasses import dataclass

from ..facts import Facts
from ..status import PASS, SKIP, Result
from .config import CONFIG
from .declare import Check, Skipped
from .gpu import GPU, MEASURED
from .host import HOST
from .software import SOFTWARE

GROUPS = (HOST, GPU, SOFTWARE, CONFIG, MEASURED)
CHECKS: tuple[Check, ...] = tuple(check for group in GROUPS for check in group.checks)


@dataclass(frozen=True)
class Finding:
    """The outcome of one check, as the report shows it."""

    id: str
    group: str
    title: str
    status: str
    message: str
    fix: str


def run_checks(facts: Facts) -> tuple[Finding, ...]:
    """Every check, none of which can stop the others; those of a config only where one was given."""
    asked = [check for check in CHECKS if facts.config is not None or check.group != CONFIG.name]
    return tuple(_finding(check, facts) for check in asked)


def _finding(check: Check, facts: Facts) -> Finding:
    try:
        result = check.ask(facts)
    except Skipped as reason:
        result = Result(SKIP, *reason.args)
    except Exception as error:  # an answer nobody has thought of must not cost the rest of the page
        result = Result(
            check.worst, f"the check itself failed: {type(error).__name__}: {error}", "report this with the JSON report"
        )
    fix = "" if result.status == PASS else result.fix or ("" if result.status == SKIP else check.fix)
    return Finding(check.id, check.group, check.question, result.status, result.message, fix)
