"""For tests that cannot be without the stand-in."""

from __future__ import annotations

from pathlib import Path

import pytest

from .stand_in import CannotBuild, build


def stand_in_or_skip() -> Path:
    """The folder with its libraries; where nothing can compile them, the test is skipped with the reason."""
    try:
        return build()
    except CannotBuild as reason:
        pytest.skip(str(reason))
