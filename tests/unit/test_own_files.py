"""Small files of the fork's own: whole or not there, and nothing beside them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from simpletuner.gh200 import own_files
from simpletuner.gh200.own_files import write_whole

pytestmark = pytest.mark.unit


def no_nameless_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """As NFS has it."""
    plain = os.open

    def refuse(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(95, "Operation not supported")
        return plain(path, flags, mode)

    monkeypatch.setattr(own_files.os, "open", refuse)


def no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise FileNotFoundError("/proc")

    monkeypatch.setattr(own_files.os, "link", refuse)


@pytest.mark.parametrize("hinder", [None, no_nameless_files, no_proc])
def test_own_file_is_whole_and_alone_and_keeps_its_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hinder: object
) -> None:
    if callable(hinder):
        hinder(monkeypatch)
    file = tmp_path / "a.json"
    write_whole(file, "é")
    assert file.read_bytes() == "é".encode()
    (tmp_path / "plain").touch()
    assert file.stat().st_mode == (tmp_path / "plain").stat().st_mode
    file.chmod(0o600)
    write_whole(file, b"\0" * 100_000)
    assert file.stat().st_size == 100_000 and file.stat().st_mode & 0o777 == 0o600
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.json", "plain"]


def test_own_file_of_one_who_ends_while_writing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen from a process that stands still in the middle of it."""
    seen: list[list[str]] = []
    plain = os.link

    def look(*given: object, **named: object) -> None:
        seen.append([one.name for one in tmp_path.iterdir()])
        plain(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(own_files.os, "link", look)
    write_whole(tmp_path / "a", b"content")
    assert seen == [[]] and (tmp_path / "a").read_bytes() == b"content"
