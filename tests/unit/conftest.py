"""Unit tests import only the overlay: in their processes upstream's package must not load torch and its logging."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _light_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMPLETUNER_SKIP_TORCH", "1")
