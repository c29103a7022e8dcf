"""Flags that open the tests which need more than this checkout: the built fork, a network, patience."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GATES = {
    "fork": "needs the fork in build/fork",
    "network": "asks the package registry",
    "slow": "takes more than about a minute",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    for name, reason in GATES.items():
        parser.addoption(f"--{name}", action="store_true", help=f"also run the tests marked {name}: {reason}")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--fork") and not (ROOT / "build/fork/simpletuner/__init__.py").is_file():
        raise pytest.UsageError("--fork: there is no fork in build/fork; make it with ./execute_gh200_rebase.sh")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(ROOT / "tests/fork"):
            item.add_marker(pytest.mark.fork)
        for name, reason in GATES.items():
            if item.get_closest_marker(name) and not config.getoption(f"--{name}"):
                item.add_marker(pytest.mark.skip(reason=f"{reason}; run with --{name}"))
