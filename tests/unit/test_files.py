"""Small files of the fork's own: whole or not there, and nothing beside them."""

from __future__ import annotations

from pathlib import Path

from simpletuner.gh200.files import write_whole


def test_own_file_is_whole_and_alone_and_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    write_whole(file, "é")
    assert file.read_bytes() == "é".encode()
    (tmp_path / "plain").touch()
    assert file.stat().st_mode == (tmp_path / "plain").stat().st_mode
    file.chmod(0o600)
    write_whole(file, b"\0" * 100_000)
    assert file.stat().st_size == 100_000 and file.stat().st_mode & 0o777 == 0o600
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.json", "plain"]
