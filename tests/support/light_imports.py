"""Unit tests import only the overlay: in their processes upstream's package must not load torch and its logging."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cuda_sim.needed import stand_in_or_skip
from tests.cuda_sim.stand_in import Machine


@pytest.fixture(autouse=True)
def _light_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMPLETUNER_SKIP_TORCH", "1")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Python behind the stand-in driver."""
    stand_in_or_skip()
    return Machine(None, tmp_path / "calls.log")
