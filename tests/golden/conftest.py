"""What every golden test shares: the records, the fixed directory of their trainings, and the one command that records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from preloaded import Preloaded, preloaded

pytest.register_assert_rewrite("tests.golden.records")

from tests.golden.records import Records  # noqa: E402  rewritten first, so that a difference is shown
from tests.golden.workplace import Workplace, workplace  # noqa: E402


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", action="store_true", help="tests/golden: write the records anew instead of comparing")


@pytest.fixture(scope="session")
def golden(request: pytest.FixtureRequest) -> Records:
    return Records(Path(__file__).parent / "records", writing=bool(request.config.getoption("--record")))


@pytest.fixture(scope="session")
def place() -> Iterator[Workplace]:
    with workplace() as found:
        yield found


@pytest.fixture(scope="session")
def one_process(place: Workplace) -> Iterator[Preloaded]:
    """Trainings forked from one process that has imported the trainer."""
    with preloaded(place.directory) as socket:
        yield Preloaded(place=socket)
