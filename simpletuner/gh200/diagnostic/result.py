"""How a check ends, and how numbers are shown."""

from __future__ import annotations

from dataclasses import dataclass

PASS, WARN, FAIL, SKIP = "pass", "warn", "fail", "skip"
STATUSES = (PASS, WARN, FAIL, SKIP)


@dataclass(frozen=True)
class Result:
    """`fix` is empty where there is nothing to do, or where the check's own fix says it all."""

    status: str
    message: str
    fix: str = ""


def gb(size: int | None) -> str:
    """GB are 10^9 bytes, as on the labels of memory and in the settings."""
    if size is None:
        return "unknown"
    return f"{size / 1e9:.1f} GB" if size >= 10**9 else f"{size / 1e6:.1f} MB"
