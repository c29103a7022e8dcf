"""What several tests of the fork share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from browser import need_browser
from preloaded import Preloaded, preloaded

from simpletuner.gh200 import runtime
from tests.support.web_lab import Server


@pytest.fixture(scope="session")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Preloaded]:
    """Runs trainings of the fork on a CPU without importing SimpleTuner for each."""
    with preloaded(tmp_path_factory.mktemp("forked")) as place:
        yield Preloaded(place=place)


@pytest.fixture
def own_run() -> Iterator[None]:
    """Datasets that are configured without a training belong to a run of their own, which would outlast the test."""
    runtime.end()
    yield
    runtime.end()


@pytest.fixture(scope="session")
def web_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Upstream's server in the fork; started once, for most of a minute."""
    with Server(tmp_path_factory.mktemp("web")) as server:
        yield server


# Not for the session: while it is open, no other test can run a loop of asyncio's.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright here; scripts/setup.sh installs it")
    executable = need_browser()
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-quic"])
        yield browser
        browser.close()
