"""What several tests of the fork share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fork.web_lab import Server


@pytest.fixture(scope="session")
def web_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Upstream's server in the fork; started once, for most of a minute."""
    server = Server(tmp_path_factory.mktemp("web"))
    try:
        server.wait()
        yield server
    finally:
        server.stop()
