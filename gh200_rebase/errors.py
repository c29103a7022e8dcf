"""Errors of the rebase tool: each says what was rejected, where, why, and what to do next."""

from __future__ import annotations

EXIT_CLEAN = 0
EXIT_ANCHOR = 1
EXIT_DRIFT = 2
EXIT_TESTS = 3
EXIT_REJECTED = 4


class RebaseError(Exception):
    """Base of everything the tool stops for; `exit_code` is what the process returns."""

    exit_code = EXIT_REJECTED

    def __init__(self, what: str, *, where: str = "", why: str = "", fix: str = "") -> None:
        self.what, self.where, self.why, self.fix = what, where, why, fix
        super().__init__(self.render())

    def render(self) -> str:
        """The message with its labelled parts."""
        parts = [self.what]
        for label, text in (("where", self.where), ("why", self.why), ("fix", self.fix)):
            if text:
                parts.append(f"  {label}: " + text.replace("\n", "\n         "))
        return "\n".join(parts)


class Rejected(RebaseError):
    """Bad input or a state the tool will not touch."""


class AnchorFailed(RebaseError):
    """An edit found no place, or too many, in this upstream."""

    exit_code = EXIT_ANCHOR


class DriftFound(RebaseError):
    """The edits landed, but the code around them is not what was last reviewed."""

    exit_code = EXIT_DRIFT


class ValidationFailed(RebaseError):
    """The fork was built and its tests say no."""

    exit_code = EXIT_TESTS
