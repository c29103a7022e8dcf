"""What a job leaves out, in groups of one reason; a job that would leave out most images is rejected."""

from __future__ import annotations

from collections import defaultdict

from ..errors import GH200Error
from ..preflight.report import some
from .images import ImageDirectory

_PLURALS = {"is": "are", "has": "have", "differs": "differ"}


def left_out_lines(directory: ImageDirectory, uncaptioned: list[str]) -> list[str]:
    """One line for each reason, with its count and the first names."""
    captions = {name: directory.unread.get(name, "has no caption; --caption TEXT gives one") for name in uncaptioned}
    reasons = {**directory.unusable, **captions}
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for name, why in sorted(reasons.items()):
        # What follows the colon is of this file alone.
        verb, _, rest = why.partition(":")[0].partition(" ")
        groups[f"{_PLURALS.get(verb, verb)} {rest}"].append(name)
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
