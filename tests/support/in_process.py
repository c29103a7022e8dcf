"""Fails a test that starts a process or opens a socket; tests/unit/conftest.py applies it to all unit tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import util
from types import FrameType
from typing import Any

import pytest

FORBIDDEN = frozenset(
    {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen", "socket.__new__"}
)
_watching = False
_found: list[str] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching and event in FORBIDDEN and not _importing():
        _found.append(f"{event}{arguments!r}"[:200])


def _importing() -> bool:
    """Whether a library is being imported: some run ldconfig or open a socket then, in whichever test comes first."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


# There is no call that removes an audit hook.
sys.addaudithook(_audit)


@contextmanager
def _watched() -> Iterator[None]:
    global _watching
    with pytest.MonkeyPatch.context() as patch:
        # What multiprocessing starts with "spawn" and "forkserver" raises no audit event.
        patch.setattr(util, "spawnv_passfds", lambda path, *more: _audit("subprocess.Popen", (path, *more)))
        _found.clear()
        _watching = True
        try:
            yield
        finally:
            _watching = False
    if _found:
        pytest.fail(f"a unit test starts no process and opens no socket: {_found}; move it to tests/integration")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    with _watched():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with _watched():
        return (yield)
