"""Files that stay on disk: which are read ahead, which are dropped, and when staging them would save nothing."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from simpletuner.gh200.backends.ram import page_cache
from simpletuner.gh200.backends.ram.page_cache import AHEAD, PageCacheWindow
from simpletuner.gh200.memory.family import Family, Platform


@pytest.fixture
def advised(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Paths and what was advised on them, in order."""
    found: list[tuple[str, int]] = []

    def advise(descriptor: int, start: int, size: int, advice: int) -> None:
        assert (start, size) == (0, 0)
        found.append((os.readlink(f"/proc/self/fd/{descriptor}"), advice))

    monkeypatch.setattr(page_cache.os, "posix_fadvise", advise)
    return found


def files(directory: Path, count: int) -> list[str]:
    paths = [directory / f"{number:03}.bin" for number in range(count)]
    for path in paths:
        path.write_bytes(b"x")
    return [str(path) for path in paths]


def test_a_file_that_was_read_is_dropped_and_the_next_ones_are_read_ahead(
    tmp_path: Path, advised: list[tuple[str, int]]
) -> None:
    paths = files(tmp_path, AHEAD + 4)
    window = PageCacheWindow(paths)
    window.passed(paths[0])
    assert advised == [
        (paths[0], os.POSIX_FADV_DONTNEED),
        *((path, os.POSIX_FADV_WILLNEED) for path in paths[1 : AHEAD + 1]),
    ]
    advised.clear()
    window.passed(paths[1])
    assert advised == [(paths[1], os.POSIX_FADV_DONTNEED), (paths[AHEAD + 1], os.POSIX_FADV_WILLNEED)], "one more"


def test_files_that_are_gone_or_of_others_are_left_alone(tmp_path: Path, advised: list[tuple[str, int]]) -> None:
    paths = files(tmp_path, 2)
    window = PageCacheWindow(paths)
    os.unlink(paths[1])
    window.passed(str(tmp_path / "other.bin"))
    assert advised == []
    window.passed(paths[0])
    assert advised == [(paths[0], os.POSIX_FADV_DONTNEED)]


@pytest.mark.parametrize("family", Family)
def test_the_page_cache_is_better_only_in_one_pool(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "platform", lambda device: Platform(family))
    assert not page_cache.is_better([], None), "no GPU is known"
    run = SimpleNamespace(hints=SimpleNamespace(device=0))
    monkeypatch.setattr(page_cache, "current", lambda: run)
    assert page_cache.is_better([], None) == (family is Family.ONE_POOL)
