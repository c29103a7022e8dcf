"""Unit tests import only the overlay: in their processes upstream's package must not load torch and its logging."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cuda_sim.needed import cuda_sim_or_skip
from tests.cuda_sim.processes import Machine


@pytest.fixture(autouse=True)
def _light_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SIMPLETUNER_SKIP_TORCH", "1")
    yield
    # A test that began a run must not leave it to the next one.
    runtime = sys.modules.get("simpletuner.gh200.runtime")
    if runtime is not None and isinstance(runtime.current(), runtime.Run):
        runtime.end()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Python behind the simulated driver."""
    cuda_sim_or_skip()
    return Machine(None, tmp_path / "calls.log")
