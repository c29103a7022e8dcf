"""What a job leaves out, in groups of one reason; a job that would leave out most images is rejected."""

from __future__ import annotations

import re
from collections import defaultdict

from ..errors import GH200Error
from ..preflight.report import some
from .images import ImageDirectory

# What differs from file to file within one reason.
_DETAILS = (
    (r"^is \d+x\d+, ", "are "),
    (r"^differs from .* in the", "differ from another in the"),
    (r": \S+ is not", ": not"),
)
_PLURALS = ((r"^is ", "are "), (r"^has ", "have "), (r"^cannot", "cannot"))


def left_out_lines(directory: ImageDirectory, uncaptioned: list[str]) -> list[str]:
    """One line for each reason, with its count and the first names."""
    reasons = dict(directory.unusable)
    reasons |= {
        name: f"{directory.unread.get(name, 'has no caption')}; --caption TEXT gives one" for name in uncaptioned
    }
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for name, why in sorted(reasons.items()):
        for pattern, plural in (*_DETAILS, *_PLURALS):
            why = re.sub(pattern, plural, why)
        groups[why].append(name)
    return [
        f"{names[0]} {reasons[names[0]]}" if len(names) == 1 else f"{len(names):,} images {why}: {some(names)}"
        for why, names in groups.items()
    ]


def reject_most_left_out(directory: ImageDirectory, uncaptioned: list[str]) -> None:
    """A job of the few images that are left is not what anybody meant."""
    left, used = len(directory.unusable) + len(uncaptioned), len(directory.sizes)
    if left > used:
        raise GH200Error(
            f"Most images would be left out: {left:,} of {left + used:,}.",
            where=str(directory.root),
            why="\n".join(left_out_lines(directory, uncaptioned)),
            fix="repair or remove them, or give images without a caption one with --caption TEXT",
        )
