"""One function per command: (project, options, result) -> exit code. `result` is what --json writes."""

from .build import apply, status, verify, wheel
from .look import check, explain, export, retire, review
from .releases import OLDEST, lock, manifest, matrix
from .watch import watch_upstream

__all__ = [
    "OLDEST",
    "apply",
    "check",
    "explain",
    "export",
    "lock",
    "manifest",
    "matrix",
    "retire",
    "review",
    "status",
    "verify",
    "watch_upstream",
    "wheel",
]
