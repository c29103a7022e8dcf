"""How a check ends, and how numbers are shown."""

from __future__ import annotations

from dataclasses import dataclass

from ..preflight.config import gb

__all__ = ["FAIL", "PASS", "SKIP", "STATUSES", "WARN", "Result", "gb"]
PASS, WARN, FAIL, SKIP = "pass", "warn", "fail", "skip"
STATUSES = (PASS, WARN, FAIL, SKIP)


@dataclass(frozen=True)
class Result:
    """`fix` is empty where there is nothing to do, or where the check's own fix says it all."""

    status: str
    message: str
    fix: str = ""
