"""Every public name of the package leads to something."""

from __future__ import annotations

import pytest

from simpletuner import gh200


@pytest.mark.parametrize("name", [name for name in gh200.__all__ if name != "GH200InMemoryBackend"])
def test_a_public_name_can_be_imported(name: str) -> None:
    """GH200InMemoryBackend needs SimpleTuner itself; the golden tests import it from the built fork."""
    assert getattr(gh200, name).__name__ == name
