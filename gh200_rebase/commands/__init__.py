"""One function per command: (project, options, result) -> exit code. `result` is what --json writes."""

from .build import apply, status, verify, wheel
from .look import check, explain, export, review
from .releases import OLDEST, lock, manifest, matrix

__all__ = [
    "OLDEST",
    "apply",
    "check",
    "explain",
    "export",
    "lock",
    "manifest",
    "matrix",
    "review",
    "status",
    "verify",
    "wheel",
]
