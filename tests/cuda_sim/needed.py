"""For tests that cannot be without the simulated device."""

from __future__ import annotations

from pathlib import Path

import pytest

from .processes import CannotBuild, build


def cuda_sim_or_skip() -> Path:
    """The directory with its libraries; where nothing can compile them, the test is skipped with the reason."""
    try:
        return build()
    except CannotBuild as reason:
        pytest.skip(str(reason))
